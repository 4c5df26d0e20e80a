"""The checkpoint: how far the log, and everything derived from it, is durable.

4,096 bytes. The first 40 are RocketMQ's: store times of the last durable message in the log, in the
queues and in the index, and two offsets that only its later versions use. After them Tianzhou
stores exact positions, with a checksum; they are used only while the three times are those that
were written with them, so that after a Java broker ran in between the log is scanned instead. All
of it lies in the first 512 bytes, which a disk writes completely or not at all.

    0 log_timestamp 8 | 8 queues_timestamp 8 | 16 index_timestamp 8 | 24 unused 16
    64 magic 4 | 68 crc 4 | 72 flushed 8 | 80 derived 8 | 88 anchor 8 | 96 queues 8 |
    104 units 8 | 112 index_files 8 | 120 index_count 8 | 128 clean 8 | 136 checked 8 |
    144 index_name 24 | 168 timestamps 24
    192 begin_magic 4 | 196 begin_crc 4 | 200 log_begin 8

The last part was added later and has its own checksum: earlier versions write zeros there, which
means that the start of the log is unknown.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from tianzhou.record.crc import crc32
from tianzhou.store.files import File, Files

FILE_BYTES: Final = 4096
SECTOR: Final = 512
TIMES: Final = struct.Struct(">qqq")
OURS_AT: Final = 64
OURS: Final = struct.Struct(">qqqqqqqqq24s24s")
PREFIX: Final = struct.Struct(">iI")
NO_QUEUES: Final = -1
"""A number of queues that never matches."""
MAGIC: Final = 0x545A4350  # "TZCP"
BEGIN_AT: Final = OURS_AT + PREFIX.size + OURS.size
BEGIN: Final = struct.Struct(">q")
BEGIN_MAGIC: Final = 0x545A4C42  # "TZLB"
UNKNOWN: Final = -1
"""The `log_begin` of a checkpoint that does not record where the log starts."""

assert BEGIN_AT + PREFIX.size + BEGIN.size <= SECTOR


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Invariant: derived <= flushed, unless the log is younger than the checkpoint."""

    log_timestamp: int = 0
    queues_timestamp: int = 0
    index_timestamp: int = 0
    flushed: int = 0
    """Bytes of the log below this offset are durable. Damage there is never truncated."""
    derived: int = 0
    """Queues and index durably contain everything of the log below this offset."""
    anchor: int = 0
    """The start of the record that ends at `derived`: it proves that the log still matches."""
    queues: int = 0
    units: int = 0
    """Number of queues and of their units when all below `derived` was in them."""
    index_files: int = 0
    index_name: str = ""
    index_count: int = 1
    """Number of index files, the newest and its entry count at `derived`."""
    clean: bool = False
    """Everything was written at an orderly stop, and nothing since."""
    checked: bool = False
    """Whether every record from `flushed` on has a checksum of the whole record: one without is
    torn."""
    log_begin: int = UNKNOWN
    """The store has removed no log file from this offset on. It is durable before retention removes
    a file, so a log that starts later has lost files in another way."""
    exact: bool = False
    """Whether Tianzhou's part of the file exists and is valid; otherwise only the three times are
    known."""


def encode(checkpoint: Checkpoint) -> bytes:
    times = TIMES.pack(
        checkpoint.log_timestamp, checkpoint.queues_timestamp, checkpoint.index_timestamp
    )
    ours = OURS.pack(
        checkpoint.flushed,
        checkpoint.derived,
        checkpoint.anchor,
        checkpoint.queues,
        checkpoint.units,
        checkpoint.index_files,
        checkpoint.index_count,
        checkpoint.clean,
        checkpoint.checked,
        checkpoint.index_name.encode(),
        times,
    )
    page = bytearray(SECTOR)
    page[:24] = times
    PREFIX.pack_into(page, OURS_AT, MAGIC, crc32(ours))
    page[OURS_AT + PREFIX.size : OURS_AT + PREFIX.size + OURS.size] = ours
    begin = BEGIN.pack(checkpoint.log_begin)
    PREFIX.pack_into(page, BEGIN_AT, BEGIN_MAGIC, crc32(begin))
    page[BEGIN_AT + PREFIX.size : BEGIN_AT + PREFIX.size + BEGIN.size] = begin
    return bytes(page)


def decode(page: bytes) -> Checkpoint:
    """Parse the bytes. A short, foreign or damaged file yields few values, which is safe."""
    page = page.ljust(SECTOR, b"\0")
    log_timestamp, queues_timestamp, index_timestamp = TIMES.unpack_from(page)
    known = Checkpoint(max(log_timestamp, 0), max(queues_timestamp, 0), max(index_timestamp, 0))
    magic, crc = PREFIX.unpack_from(page, OURS_AT)
    ours = page[OURS_AT + PREFIX.size :][: OURS.size]
    if magic != MAGIC or crc != crc32(ours):
        return known
    (
        flushed,
        derived,
        anchor,
        queues,
        units,
        index_files,
        index_count,
        clean,
        checked,
        name,
        times,
    ) = OURS.unpack(ours)
    if times != page[:24]:
        return known
    return replace(
        known,
        flushed=flushed,
        derived=derived,
        anchor=anchor,
        queues=queues,
        units=units,
        index_files=index_files,
        index_name=name.rstrip(b"\0").decode("ascii", "replace"),
        index_count=index_count,
        clean=bool(clean),
        checked=bool(checked),
        log_begin=_decode_begin(page),
        exact=True,
    )


def _decode_begin(page: bytes) -> int:
    magic, crc = PREFIX.unpack_from(page, BEGIN_AT)
    begin = page[BEGIN_AT + PREFIX.size :][: BEGIN.size]
    if magic != BEGIN_MAGIC or crc != crc32(begin):
        return UNKNOWN
    (offset,) = BEGIN.unpack(begin)
    return max(offset, UNKNOWN)


class CheckpointFile:
    """Owner: the flusher; during recovery and closing that is the store's writer."""

    def __init__(self, files: Files, path: str) -> None:
        if not files.exists(path):
            files.create(path, FILE_BYTES).close()
        self._file: File = files.open(path)
        self.current = decode(self._file.pread(0, SECTOR))

    def write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        """Write the file. Without sync it survives a crash of the process; with it, of the
        machine."""
        self._file.pwrite(0, encode(checkpoint))
        if sync:
            self._file.sync()
        self.current = checkpoint

    def admit_another(self) -> None:
        """Record that another program wrote to the log: it may continue after `flushed`, without
        checksums. Durable at once, because the trace of that program is about to be overwritten."""
        if self.current.exact:
            self.write(replace(self.current, clean=False, checked=False), sync=True)

    def admit_unchecked(self) -> None:
        """Record that records without a checksum follow, from another log. It is durable before
        them; otherwise a start would take them for torn."""
        if self.current.checked:
            self.write(replace(self.current, checked=False), sync=True)

    def distrust(self) -> None:
        """Durably mark queues and index as invalid: they are about to be rebuilt, and a half-built
        state after a crash could match the checkpoint."""
        if self.current.exact:
            self.write(replace(self.current, queues=NO_QUEUES), sync=True)

    def close(self) -> None:
        self._file.close()
