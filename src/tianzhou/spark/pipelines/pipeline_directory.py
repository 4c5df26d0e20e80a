"""The directory of a pipeline: progress and identity of its queries, and metrics of past runs.

<checkpoint>/id                 identifies the pipeline in the tables that it writes
<checkpoint>/queries/<name>     Spark's checkpoints
<checkpoint>/quarantine         rows that could not be decoded, unless configured otherwise
<checkpoint>/schema.json        inferred columns
<checkpoint>/history.json       metrics of the last micro-batches
<checkpoint>/lock               locked while the pipeline runs, if the directory is local
"""

import fcntl
import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql.types import StructType

from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.tables.files import Files


def absolute(path: str, directory: Path) -> str:
    """Resolve a path relative to the pipeline's file; URIs stay unchanged."""
    return path if "://" in path else str((directory / path).resolve())


class PipelineDirectory:
    """Owner: the process that runs the pipeline; other processes may read."""

    def __init__(self, pipeline: Pipeline, directory: Path) -> None:
        self.directory = directory
        self.path = absolute(pipeline.checkpoint or f"checkpoints/{pipeline.name}", directory)
        self._files = Files(self.path)

    @property
    def is_local(self) -> bool:
        return "://" not in self.path

    def query_path(self, name: str) -> str:
        return self._files.uri_of(f"queries/{name}")

    def has_begun(self, name: str) -> bool:
        """Return whether a query has a checkpoint to resume from."""
        return bool(self._files.files_in(f"queries/{name}/offsets"))

    def identity(self) -> str:
        """Return an id that stays the same across runs until the pipeline is reset."""
        try:
            return self._files.read("id").decode()
        except FileNotFoundError:
            made = uuid.uuid4().hex
            self._files.write("id", made.encode())
            return made

    def schema(self) -> StructType | None:
        try:
            return StructType.fromJson(json.loads(self._files.read("schema.json")))
        except FileNotFoundError:
            return None

    def keep_schema(self, schema: StructType) -> None:
        self._files.write("schema.json", schema.json().encode())

    def history(self) -> bytes:
        try:
            return self._files.read("history.json")
        except FileNotFoundError:
            return b"[]"

    def keep_history(self, data: bytes) -> None:
        self._files.write("history.json", data)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Lock the directory: two processes on one checkpoint would corrupt it. Raises
        PipelineError if the pipeline is already running."""
        if not self.is_local:
            yield
            return
        Path(self.path).mkdir(parents=True, exist_ok=True)
        with (Path(self.path) / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise PipelineError(
                    f"the pipeline is already running in process {file.read().strip() or '?'} "
                    f"({self.path})"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def runs_in(self) -> int | None:
        """Return the id of the local process that runs the pipeline, if any."""
        lock = Path(self.path) / "lock"
        if not self.is_local or not lock.exists():
            return None
        with lock.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or 0)
        return None

    def reset(self) -> None:
        """Delete the progress and the identity of the queries. Written rows stay."""
        with self.locked():
            self._files.remove_all("queries")
            for name in ("id", "schema.json", "history.json"):
                self._files.remove(name)
