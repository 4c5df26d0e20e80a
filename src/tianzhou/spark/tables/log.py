"""The log of a table: which files of its directory belong to it.

    <table>/date=2026-11-16/topic=orders/3f2a91c0-00000012-0.parquet
    <table>/_tianzhou/log/000000000012.json       one change each
    <table>/_tianzhou/staging/...                 files being written

A change is one file, written atomically: added files, removed files and, for a micro-batch, its
query and number. Rows become visible with their log record. From time to time a record holds the
whole state, and older records are deleted.

Invariant: a table has one writer at a time. File names are never reused.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.files import Files
from tianzhou.spark.tables.spans import QueueOffsets, beginnings, fold

DIRECTORY: Final = "_tianzhou/log"
STAGING: Final = "_tianzhou/staging"
RECORDS_KEPT: Final = 64
"""Changes after which the whole state is written: a reader opens at most this many records."""


class DataFile(msgspec.Struct, frozen=True):
    name: str
    rows: int
    size: int

    @property
    def directory(self) -> str:
        return self.name.rpartition("/")[0]


class State(msgspec.Struct):
    """The state of a table after a number of changes."""

    files: dict[str, DataFile] = {}
    schema: str = ""
    """Spark's JSON of all columns; empty before the first row."""
    partitions: list[str] = []
    batches: dict[str, int] = {}
    """Query to the number of its last committed micro-batch."""
    starts: QueueOffsets = {}
    """For tables of messages: the table has every message from here up to `ends`."""
    ends: QueueOffsets = {}
    """The offset after the last message that was ever written."""
    is_part: bool = False
    """Whether messages were filtered or transformed before writing."""

    def has(self, query: str, batch: int) -> bool:
        """Return whether a micro-batch is committed."""
        return self.batches.get(query, -1) >= batch

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def add(self, change: "Change") -> None:
        for file in change.added:
            self.files[file.name] = file
        for name in change.removed:
            self.files.pop(name, None)
        if change.schema:
            self.schema, self.partitions = change.schema, list(change.partitions)
        if change.query:
            self.batches[change.query] = change.batch
        self.is_part = self.is_part or change.is_part
        fold(self.starts, beginnings(change.starts, self.ends), max)
        fold(self.starts, change.gone, max)
        fold(self.ends, change.ends, max)


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of the log."""

    added: Sequence[DataFile] = ()
    removed: Sequence[str] = ()
    query: str = ""
    batch: int = -1
    schema: str = ""
    partitions: Sequence[str] = ()
    starts: QueueOffsets = {}
    ends: QueueOffsets = {}
    gone: QueueOffsets = {}
    """The offset after the last message that retention deleted."""
    is_part: bool = False
    state: State | None = None
    """The whole state up to here. All other fields are then empty."""


class Log:
    """Reads and appends the records. Owner: one writer, or any number of readers."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> tuple[State, int]:
        """Return the state, and the number of the next change."""
        while True:
            names = sorted(entry.name for entry in self._files.files_in(DIRECTORY))
            names = [name for name in names if name.endswith(".json")]
            try:
                return self._folded(names), _number(names[-1]) + 1 if names else 0
            except FileNotFoundError:
                # The writer has meanwhile written the whole state and deleted older records.
                if names == sorted(entry.name for entry in self._files.files_in(DIRECTORY)):
                    raise

    def _folded(self, names: list[str]) -> State:
        state = State()
        for change in self._since_state(names):
            if change.state is not None:
                state = change.state
            else:
                state.add(change)
        return state

    def _since_state(self, names: list[str]) -> list[Change]:
        found: list[Change] = []
        for name in reversed(names):
            try:
                found.append(msgspec.json.decode(self._files.read(name), type=Change))
            except msgspec.DecodeError as error:
                raise TableError(
                    f"{self._files.uri_of(name)} is not a valid log record: {error}"
                ) from error
            if found[-1].state is not None:
                break
        return found[::-1]

    def append(self, change: Change, number: int) -> None:
        self._files.write(_name(number), msgspec.json.encode(change))

    def write_checkpoint(self) -> None:
        """Write the whole state and delete older records, if there are enough of them."""
        names = sorted(entry.name for entry in self._files.files_in(DIRECTORY))
        if len(names) <= RECORDS_KEPT:
            return
        state, number = self.read()
        self.append(Change(state=state), number)
        for name in names:
            self._files.remove(name)


def _name(number: int) -> str:
    return f"{DIRECTORY}/{number:012d}.json"


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".json"))
