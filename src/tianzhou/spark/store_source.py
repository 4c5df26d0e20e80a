"""`format("rocketmq-store")`: a store directory as a table, with no broker.

For audits, repairs and migration: every record of the commit log is a row, including those of the
broker's internal topics. Executors must see the directory under the same path.

The log is read without opening the store: no lock, no change. The directory may be a copy or in use
by a broker. Nothing is trusted: records are walked and, unless the option `verify` is false, their
checksums verified. At the end of a log there may be a record that is being written, or was when the
machine crashed; bytes after the last sound record are ignored.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tianzhou.base.errors import TianzhouError
from tianzhou.filter.tags import parse_tags
from tianzhou.record.layout import AT_MAGIC, HEAD, INT32, MAGIC_V1, MAGIC_V2
from tianzhou.record.walk import Stop, Walk, first_unsound, is_sound, is_well_formed, walk
from tianzhou.spark.arrow import Array, Batch
from tianzhou.spark.columns import Chunk, to_batch
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.options import StoreOptions, store_options_of
from tianzhou.spark.reading import chunk_of, has_tag
from tianzhou.spark.schema import STORE, arrow_schema, table_schema
from tianzhou.store import layout
from tianzhou.store.consume_queue import MISSING_SIZE
from tianzhou.store.segments import is_file_name

SLICE_BYTES: Final = 8 * 1024 * 1024
SLICE_RECORDS: Final = 8 * 1024
"""Limits of one batch, for the same reasons as those of a pulled chunk."""

_MAGICS: Final = (INT32.pack(MAGIC_V1), INT32.pack(MAGIC_V2))
_SEARCH_BYTES: Final = 1 << 20
_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_QUEUE_FILES_MAX: Final = 256
_SAMPLE_EVERY: Final = 256


class StoreNotFound(TianzhouError):
    """The path is not a store directory."""


class LogDamaged(TianzhouError):
    """The log has damaged bytes before further sound records."""


class LogSpan(NamedTuple):
    """Consecutive records in one file: from the first byte of one to the end of another."""

    path: str
    base: int
    """Physical offset of the first byte of the file."""
    start: int
    end: int
    is_last: bool
    """No span follows, so its records may end anywhere."""


class LogSlice(NamedTuple):
    """Records of one batch. Valid until: the next slice is read."""

    data: memoryview
    starts: list[int]
    end: int


class RocketMQStore(DataSource):
    """The data source `rocketmq-store`: a store directory as a table.

        spark.read.format("rocketmq-store").load("tianzhou-data")

    Spark calls the methods. They raise SourceError for invalid options.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        return table_schema(STORE, store_options_of(self.options).columns)

    def reader(self, schema: StructType) -> "StoreReader":
        return StoreReader(store_options_of(self.options), schema)


@dataclass(frozen=True, repr=False)
class LogPartition(InputPartition):
    """The work of one task: a span of the log."""

    piece: LogSpan


class StoreReader(DataSourceReader):
    """Reads a store directory. Planned on the driver, read by tasks."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(STORE, schema)

    def partitions(self) -> list[InputPartition]:
        with _translated_errors():
            pieces = log_spans(self._options.path, self._options.partition_bytes_max)
        return [LogPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        if not isinstance(partition, LogPartition):
            return
        options = self._options
        slices = read_span(
            partition.piece, verify=options.verify, skip_damage=not options.fail_on_data_loss
        )
        with _translated_errors():
            for piece in slices:
                chunk = self._wanted(chunk_of(piece.data, piece.starts, piece.end))
                if len(chunk):
                    yield to_batch(chunk, self._schema)

    def _wanted(self, chunk: Chunk) -> Chunk:
        """Return the records that match the options."""
        options, keep = self._options, np.ones(len(chunk), bool)
        if options.starting_ms is not None:
            keep &= chunk.store_times_ms >= options.starting_ms
        if options.ending_ms is not None:
            keep &= chunk.store_times_ms < options.ending_ms
        if options.topics is not None:
            keep &= _matches(chunk.topics(), options.topics)
        tags = parse_tags(options.tags)
        if not tags.is_all:
            keep &= has_tag(chunk, tags).to_numpy(zero_copy_only=False)
        return chunk if keep.all() else chunk.chosen(np.flatnonzero(keep))


def _matches(texts: Array, wanted: tuple[str, ...] | re.Pattern[str]) -> np.ndarray:
    """Return which texts match. A chunk has few distinct topics; each is matched once."""
    few = texts.dictionary_encode()
    accepted = [
        bool(wanted.fullmatch(topic)) if isinstance(wanted, re.Pattern) else topic in wanted
        for topic in few.dictionary.to_pylist()
    ]
    return np.array(accepted, bool)[few.indices.to_numpy()]


@contextmanager
def _translated_errors() -> Generator[None]:
    try:
        yield
    except StoreNotFound as error:
        raise SourceError("NO_STORE", str(error)) from None
    except LogDamaged as error:
        raise DataLoss(str(error)) from None
    except FileNotFoundError as error:
        raise DataLoss(
            f"{error.filename} no longer exists: did retention delete it during the read?"
        ) from None
    except (TianzhouError, OSError) as error:
        raise SourceError("READ_FAILED", str(error)) from error


# Dividing the log among tasks


def log_spans(root: str, bytes_max: int) -> list[LogSpan]:
    """Divide the log among tasks, at offsets where records are known to start."""
    paths = layout.paths_in_use(root)
    directory = Path(paths.commit_log)
    if not directory.is_dir():
        raise StoreNotFound(
            f"{root} has no commit log: {directory} is missing; is it a store directory?"
        )
    files = sorted(path for path in directory.iterdir() if is_file_name(path.name))
    known = sorted(_sampled_offsets(paths.consume_queue)) if files else []
    tail = next((path for path in reversed(files) if _is_used(path)), None)
    found: list[LogSpan] = []
    for path in files:
        base, size = int(path.name), path.stat().st_size
        edges = [0, *_edges(path, size, known, bytes_max), size]
        is_tail = path == tail
        found += [
            LogSpan(str(path), base, start, end, is_tail and end == size)
            for start, end in pairwise(edges)
            if start < end
        ]
    return found


def _is_used(path: Path) -> bool:
    """Return whether a file has records: brokers allocate the next file in advance."""
    with path.open("rb") as file:
        return any(file.read(8))


def _sampled_offsets(queues: str) -> set[int]:
    """Return offsets of some records, from the consume queues."""
    files = islice(Path(queues).glob("*/*/*"), _QUEUE_FILES_MAX)
    found: set[int] = set()
    for path in files:
        if is_file_name(path.name):
            units = np.frombuffer(_sampled_units(path), _UNIT)
            used = units[(units["size"] > 0) & (units["size"] != MISSING_SIZE)]
            found |= set(used["offset"].tolist())
    return found


def _sampled_units(path: Path) -> bytes:
    """Return some units of a queue file, as many as can be read: they only serve to divide the log.
    Not through a mapping: a bad sector, or a file that is truncated meanwhile, would kill the
    process with SIGBUS."""
    found = bytearray()
    try:
        with path.open("rb") as file:
            for at in range(0, os.fstat(file.fileno()).st_size, _SAMPLE_EVERY * _UNIT.itemsize):
                unit = os.pread(file.fileno(), _UNIT.itemsize, at)
                if len(unit) < _UNIT.itemsize:
                    break
                found += unit
    except OSError:
        return bytes(found)
    return bytes(found)


def _edges(path: Path, size: int, known: list[int], bytes_max: int) -> list[int]:
    """Return positions in the file where records start, about `bytes_max` apart."""
    base, edges = int(path.name), list[int]()
    with path.open("rb") as file:
        target = bytes_max
        while target < size:
            rank = bisect_left(known, base + target)
            if rank == len(known) or known[rank] >= base + size:
                break
            at = known[rank] - base
            if _is_head(os.pread(file.fileno(), HEAD.size, at), base + at):
                edges.append(at)
            target = at + bytes_max
    return edges


def _is_head(head: bytes, physical_offset: int) -> bool:
    if len(head) < HEAD.size:
        return False
    _, magic, _, _, _, _, offset, *_ = HEAD.unpack(head)
    return magic in (MAGIC_V1, MAGIC_V2) and offset == physical_offset


# Reading a span


def read_span(piece: LogSpan, *, verify: bool, skip_damage: bool) -> Iterator[LogSlice]:
    """Yield the records of a span in slices.

    Raises LogDamaged, or with `skip_damage` continues after the damage. Raises OSError if the disk
    cannot read; a mapping would kill the worker with a signal instead.
    """
    with open(piece.path, "rb") as file:
        fd = file.fileno()
        at = piece.start
        while at < piece.end:
            # Positions are relative to the slice, because columns have 32 bits for them.
            window = os.pread(fd, min(SLICE_BYTES, piece.end - at), at)
            found = walk(window, 0, len(window), count_max=SLICE_RECORDS)
            if not found.starts and found.stop is Stop.TORN and len(window) >= INT32.size:
                # A single record is larger than a slice.
                size = max(INT32.unpack_from(window)[0], 0)
                window = os.pread(fd, min(size, piece.end - at), at) or window
                found = walk(window, 0, len(window), count_max=1)
            bad = _first_bad(window, found, base=piece.base + at, verify=verify)
            starts = found.starts[:bad]
            end = found.end if bad is None else found.starts[bad]
            if starts:
                yield LogSlice(memoryview(window), starts, end)
            at += end
            if starts and bad is None and found.stop in (Stop.TORN, Stop.END, Stop.LIMIT):
                continue
            if bad is None and found.stop in (Stop.BLANK, Stop.END):
                return
            behind = _next_sound(fd, at, piece)
            if behind is None and piece.is_last:
                return  # the end of the log
            if not skip_damage:
                raise _damaged(piece, at, behind)
            at = piece.end if behind is None else behind


def _first_bad(window: bytes, found: Walk, *, base: int, verify: bool) -> int | None:
    """Rank of the first record that cannot be returned. Checksums may be ignored but lengths may
    not: columns are sliced by them."""
    starts, end = found.starts, found.end
    if verify:
        return first_unsound(window, starts, end, base=base, well_formed=True)
    ends = zip(starts, [*starts[1:], end], strict=bool(starts))
    ranks = (rank for rank, (at, stop) in enumerate(ends) if not is_well_formed(window, at, stop))
    return next(ranks, None)


def _damaged(piece: LogSpan, at: int, behind: int | None) -> LogDamaged:
    until = "the end of the file" if behind is None else f"byte {behind - 1}"
    return LogDamaged(
        f"{piece.path}: bytes {at} to {until} (from physical offset {piece.base + at} on) are "
        "not sound records; with failOnDataLoss=false they are skipped"
    )


def _next_sound(fd: int, after: int, piece: LogSpan) -> int | None:
    """Return the position of the first sound record after this position in the span."""
    at = after + 1
    while at < piece.end:
        # Windows overlap by the size of a record header, so that none is missed at an edge.
        window = os.pread(fd, min(_SEARCH_BYTES + AT_MAGIC + 4, piece.end - at), at)
        for place in _heads(window):
            if _is_sound_at(fd, at + place, piece):
                return at + place
        at += _SEARCH_BYTES
    return None


def _heads(window: bytes) -> list[int]:
    """Positions at which a record may start, ascending."""
    found: list[int] = []
    for magic in _MAGICS:
        at = window.find(magic, AT_MAGIC)
        while at >= 0:
            found.append(at - AT_MAGIC)
            at = window.find(magic, at + 1)
    return sorted(found)


def _is_sound_at(fd: int, start: int, piece: LogSpan) -> bool:
    size = INT32.unpack(os.pread(fd, INT32.size, start).ljust(INT32.size, b"\0"))[0]
    if not HEAD.size < size <= piece.end - start:
        return False
    record, base = os.pread(fd, size, start), piece.base + start
    return (
        len(record) == size
        and is_sound(record, 0, size, base=base)
        and is_well_formed(record, 0, size)
    )
