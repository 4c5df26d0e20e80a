"""What a simulated disk is made of: files and directories that know what a crash could take.

A file has its bytes as everybody sees them, the bytes that are surely on the medium, and the
writes in between, each of which a crash keeps, loses or tears. A directory has the same for its
names. A sync moves everything in between to the medium.
"""

from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes

SECTOR: Final = 512
"""What a disk writes whole or not at all."""


class Write(NamedTuple):
    """Bytes that were written and not synced."""

    number: int
    """Its place in the order of everything done to the disk."""
    at: int
    data: bytes


class Resize(NamedTuple):
    """A new length that was not synced."""

    number: int
    size: int


Change = Write | Resize


class Inode:
    """The contents of a file.

    Invariant: `durable` with all of `pending` done to it is what readers see, unless a sync failed
    and dropped its writes.
    """

    __slots__ = (
        "allocated",
        "buffer",
        "dropped",
        "durable",
        "locked",
        "pending",
        "shadow",
        "size",
    )

    def __init__(self, content: bytes = b"") -> None:
        self.buffer = bytearray(content)
        """Never shorter than the file, and never shortened: views of it stay valid."""
        self.size = len(content)
        self.durable = content
        self.pending: list[Change] = []
        self.shadow: bytes | None = None
        """The bytes when they were last compared, if the file is mapped for writing."""
        self.allocated = len(content)
        """Blocks are reserved for the bytes before this position."""
        self.locked = False
        self.dropped = False
        """A failed sync dropped writes, so `durable` and `pending` are not what readers see."""

    @property
    def content(self) -> bytes:
        return bytes(self.buffer[: self.size])

    def write(self, number: int, at: int, data: Bytes) -> None:
        if self.shadow is not None:
            self.collect(number)
        copied = bytes(data)
        if not copied:
            return
        end = at + len(copied)
        if end > self.size:
            self._lengthen(end)
        self.buffer[at:end] = copied
        self.allocated = max(self.allocated, end)
        self.pending.append(Write(number, at, copied))
        if self.shadow is not None:
            self.shadow = self.content

    def resize(self, number: int, size: int) -> None:
        if self.shadow is not None:
            self.collect(number)
        if size > self.size:
            self._lengthen(size)
        else:
            self.buffer[size : self.size] = bytes(self.size - size)
            self.size = size
            self.allocated = min(self.allocated, size)
        self.pending.append(Resize(number, size))
        if self.shadow is not None:
            self.shadow = self.content

    def _lengthen(self, size: int) -> None:
        missing = size - len(self.buffer)
        if missing > 0:
            self.buffer += bytes(missing)  # BufferError: a mapped file was extended
        self.size = size

    def collect(self, number: int) -> None:
        """Turn writes through a mapping into pending writes, one per sector."""
        before, after = self.shadow, self.content
        if before is None or after == before:
            return
        for at in range(0, len(after), SECTOR):
            piece = after[at : at + SECTOR]
            if piece != before[at : at + SECTOR]:
                start, end = _changed_span(before[at : at + SECTOR], piece)
                assert at + end <= self.allocated, "SIGBUS: a mapped write into unreserved blocks"
                self.pending.append(Write(number, at + start, piece[start:end]))
        self.shadow = after

    def sync(self, number: int) -> None:
        self.collect(number)
        if self.pending:
            self.durable = apply(self.durable, self.pending) if self.dropped else self.content
            self.pending.clear()

    def drop_pending(self, number: int) -> None:
        """Record that a sync failed: the kernel now considers the pages clean although the medium
        does not have them. Mapped files are exempt: touching them makes them dirty again, which a
        comparison of bytes cannot detect."""
        if self.shadow is None:
            self.collect(number)
            self.dropped |= bool(self.pending)
            self.pending.clear()


def _changed_span(before: bytes, after: bytes) -> tuple[int, int]:
    start, end = 0, len(after)
    while before[start] == after[start]:
        start += 1
    while before[end - 1] == after[end - 1]:
        end -= 1
    return start, end


def apply(content: bytes, changes: list[Change]) -> bytes:
    """The bytes after these changes."""
    result = bytearray(content)
    for change in changes:
        if isinstance(change, Resize):
            set_length(result, change.size)
        else:
            put(result, change.at, change.data)
    return bytes(result)


def set_length(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


def put(content: bytearray, at: int, data: Bytes) -> None:
    if at + len(data) > len(content):
        content += bytes(at + len(data) - len(content))
    content[at : at + len(data)] = data


class Naming(NamedTuple):
    """Names that were created, renamed or removed together, and not synced. None means removed."""

    number: int
    names: tuple[tuple[str, "Inode | Directory | None"], ...]


class Directory:
    """The names of a directory, and which of them a crash could remove or restore."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[Naming] = []

    def change(self, number: int, *names: tuple[str, "Inode | Directory | None"]) -> None:
        rename(self.names, names)
        self.pending.append(Naming(number, names))

    def sync(self) -> None:
        if self.pending:
            self.durable = dict(self.names)
            self.pending.clear()


Node = Inode | Directory


def rename(names: dict[str, Node], changes: tuple[tuple[str, Node | None], ...]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
