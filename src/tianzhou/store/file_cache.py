"""A bounded number of open files. A broker has thousands of queues and fewer file handles."""

from collections import OrderedDict

from tianzhou.store.descriptors import is_unopened
from tianzhou.store.files import File, Files, creating


class FileCache:
    """Keeps files open. A returned file is for immediate use, not to keep. Owner: the store's
    writer."""

    def __init__(self, files: Files, count_max: int) -> None:
        self.files = files
        self._count_max = count_max
        self._open: OrderedDict[str, File] = OrderedDict()
        self.dirty: set[str] = set()
        """Files written to since the last checkpoint collected them for syncing."""
        self.dirty_dirs: set[str] = set()
        """Directories with names that are not synced yet."""

    def get(self, path: str) -> File:
        file = self._open.get(path)
        if file is None:
            return self._keep(path, self._opened(path))
        self._open.move_to_end(path)
        return file

    def _opened(self, path: str) -> File:
        try:
            return self.files.open(path)
        except OSError as error:
            if not is_unopened(error) or not self._open:
                raise
            self.close()  # descriptors are short: free the cached ones first
            return self.files.open(path)

    def create(self, path: str, size: int) -> File:
        self.drop(path)
        # Registered first: a file that exists is later found by its name and must have been synced;
        # syncing one that could not be created does nothing.
        self.dirty.add(path)
        self.dirty_dirs.add(path.rpartition("/")[0])
        with creating(self.files, path, size) as file:
            return self._keep(path, file)

    def drop(self, path: str) -> None:
        """Close the file, because it will be removed or its path means another one."""
        self.dirty.discard(path)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def take_dirty(self) -> tuple[set[str], set[str]]:
        """Files and directories to sync; they count as clean from now on."""
        taken = self.dirty, self.dirty_dirs
        self.dirty, self.dirty_dirs = set(), set()
        return taken

    def mark_dirty(self, files: set[str], directories: set[str]) -> None:
        """Return files that were handed out and not synced."""
        self.dirty |= files
        self.dirty_dirs |= directories

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _keep(self, path: str, file: File) -> File:
        if len(self._open) >= self._count_max:
            self._open.popitem(last=False)[1].close()
        self._open[path] = file
        return file
