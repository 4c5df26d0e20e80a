"""Files of a table, wherever Arrow reaches: this machine, HDFS, S3, Google's and Azure's stores.

Names begin at the table's directory, with `/` between their parts.
"""

from importlib import import_module
from typing import Any, NamedTuple

_fs: Any = import_module("pyarrow.fs")


class Entry(NamedTuple):
    name: str
    size: int


class Files:
    """Owner: whoever made it; it keeps nothing open. Can be pickled."""

    def __init__(self, path: str) -> None:
        # Spark says s3a where everybody else says s3.
        uri = path.replace("s3a://", "s3://", 1)
        self._files, self._root = (
            _fs.FileSystem.from_uri(uri) if "://" in uri else (_fs.LocalFileSystem(), uri)
        )
        self.uri = path.rstrip("/")

    def uri_of(self, name: str) -> str:
        """What Spark is told."""
        return f"{self.uri}/{name}"

    def files_in(self, name: str, *, deep: bool = False) -> list[Entry]:
        """Files below a directory; none if it is not there."""
        selector = _fs.FileSelector(self._place(name), recursive=deep, allow_not_found=True)
        found = self._files.get_file_info(selector)
        cut = len(self._root.rstrip("/")) + 1
        return [Entry(one.path[cut:], one.size) for one in found if one.type == _fs.FileType.File]

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        with self._files.open_input_stream(self._place(name)) as file:
            return file.read()

    def open(self, name: str) -> Any:
        return self._files.open_input_file(self._place(name))

    def write(self, name: str, data: bytes) -> None:
        """Whoever sees the file sees all of it."""
        self._make_parent(name)
        fresh = f"{name}.new"
        with self._files.open_output_stream(self._place(fresh)) as file:
            file.write(data)
        self._files.move(self._place(fresh), self._place(name))

    def move(self, name: str, to: str) -> None:
        self._make_parent(to)
        self._files.move(self._place(name), self._place(to))

    def remove(self, name: str) -> None:
        """No error if it is gone already: another life of the writer may have been here."""
        if self._files.get_file_info(self._place(name)).type != _fs.FileType.NotFound:
            self._files.delete_file(self._place(name))

    def remove_all(self, name: str) -> None:
        if self._files.get_file_info(self._place(name)).type != _fs.FileType.NotFound:
            self._files.delete_dir(self._place(name))

    def _make_parent(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        self._files.create_dir(self._place(parent), recursive=True)

    def _place(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root
