"""Files of a table, on any file system that Arrow supports: local, HDFS, S3, GCS, Azure.

Names are relative to the table's directory, with `/` as separator.
"""

import os
from importlib import import_module
from typing import Any, NamedTuple

_fs: Any = import_module("pyarrow.fs")


class Entry(NamedTuple):
    """One file of a directory."""

    name: str
    size: int


class Files:
    """Accesses the files below one path. Keeps no file open and can be pickled."""

    def __init__(self, path: str) -> None:
        # Spark's URI scheme is s3a, Arrow's is s3.
        uri = path.replace("s3a://", "s3://", 1)
        self._files, self._root = (
            _fs.FileSystem.from_uri(uri) if "://" in uri else (_fs.LocalFileSystem(), uri)
        )
        self.uri = path.rstrip("/")

    def uri_of(self, name: str) -> str:
        """Return the URI of a file for Spark."""
        return f"{self.uri}/{name}"

    def files_in(self, name: str, *, deep: bool = False) -> list[Entry]:
        """Return the files of a directory, or an empty list if it does not exist."""
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
        """Write a file atomically: readers see all of it or nothing. A power cut loses it only on
        file systems other than the local one, if these acknowledge what they may lose."""
        self._make_parent(name)
        fresh = f"{name}.new"
        with self._files.open_output_stream(self._place(fresh)) as file:
            file.write(data)
        if isinstance(self._files, _fs.LocalFileSystem):
            _sync(self._place(fresh))
        self._files.move(self._place(fresh), self._place(name))
        if isinstance(self._files, _fs.LocalFileSystem):
            _sync(self._place(name.rpartition("/")[0]))

    def move(self, name: str, to: str) -> None:
        self._make_parent(to)
        self._files.move(self._place(name), self._place(to))

    def remove(self, name: str) -> None:
        """Delete a file if it exists: an earlier run of the writer may have deleted it."""
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


def _sync(place: str) -> None:
    """Wait until a file or directory of the local disk is durable."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
