"""Deriving many records at once equals deriving them one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from record_entries import NOW_MS, chunks, put_time

from tianzhou.base.java import key_hash, string_hash
from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.record import flags, properties
from tianzhou.record.chunk import NUMPY_FROM, RecordChunk
from tianzhou.record.message import decode_all
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derive import Derived, derive, derive_by_shape, derive_plainly
from tianzhou.wire.names import SCHEDULE_TOPIC

DELAYS_MS = (1000, 5000, 10_000)


def by_queue(derived: Derived) -> dict[QueueKey, list[tuple[int, bytes]]]:
    """Runs in the order of each queue. The order of queues does not matter."""
    found: dict[QueueKey, list[tuple[int, bytes]]] = {}
    for run in derived.runs:
        found.setdefault(run.queue, []).append((run.first, run.units))
    return found


def entries_of(derived: Derived) -> list[tuple[int, int, int]]:
    return [
        (int(hash_), int(offset), int(timestamp))
        for hash_, offset, timestamp in zip(
            derived.key_hashes, derived.key_offsets, derived.key_timestamps, strict=True
        )
    ]


def same(one: Derived, other: Derived) -> None:
    assert by_queue(one) == by_queue(other)
    assert entries_of(one) == entries_of(other)
    assert one.last_timestamp == other.last_timestamp


@settings(deadline=None, max_examples=150)
@given(chunks(count_min=NUMPY_FROM), st.integers(0, 1 << 40), st.sampled_from([0, 13]))
def test_derive_by_columns_equals_derive_by_record(
    chunk: RecordChunk, base: int, ahead: int
) -> None:
    # Store times differ only within a log, which `ahead` bytes before the records simulate.
    for rank, start in enumerate(chunk.starts):
        if not chunk.data[start + 39] & flags.BORN_HOST_V6:
            put_time(chunk.data, start, NOW_MS + rank)
    buffer = bytes(ahead) + chunk.data
    starts = [ahead + start for start in chunk.starts]
    at = PhysicalOffset(base)
    plain = derive_plainly(buffer, starts, len(buffer), base=at, delays_ms=DELAYS_MS)
    same(derive_by_shape(buffer, starts, len(buffer), base=at, delays_ms=DELAYS_MS), plain)
    same(derive(buffer, starts, len(buffer), base=at, delays_ms=DELAYS_MS), plain)


@settings(deadline=None)
@given(chunks(count_min=1))
def test_derive_by_columns_accepts_few_records(chunk: RecordChunk) -> None:
    end, base = len(chunk.data), PhysicalOffset(0)
    plain = derive_plainly(chunk.data, chunk.starts, end, base=base, delays_ms=DELAYS_MS)
    same(derive_by_shape(chunk.data, chunk.starts, end, base=base, delays_ms=DELAYS_MS), plain)
    same(derive(chunk.data, chunk.starts, end, base=base, delays_ms=DELAYS_MS), plain)


@settings(deadline=None)
@given(chunks(count_min=1), st.data())
def test_derive_in_slices_equals_derive_at_once(chunk: RecordChunk, data: st.DataObject) -> None:
    """Dispatch cuts slices anywhere: after an append, or elsewhere when it rebuilds."""
    middle = data.draw(st.integers(1, len(chunk)))
    base, starts, end = PhysicalOffset(0), chunk.starts, len(chunk.data)
    whole = derive(chunk.data, starts, end, base=base, delays_ms=DELAYS_MS)
    parts = [
        derive(chunk.data, starts[:middle], chunk.ends[middle - 1], base=base, delays_ms=DELAYS_MS)
    ]
    if middle < len(starts):
        rest = derive(chunk.data, starts[middle:], end, base=base, delays_ms=DELAYS_MS)
        parts.append(rest)
    assert entries_of(whole) == [entry for part in parts for entry in entries_of(part)]
    assert _units(whole) == {
        queue: b"".join(_units(part).get(queue, b"") for part in parts) for queue in _units(whole)
    }


def _units(derived: Derived) -> dict[QueueKey, bytes]:
    return {
        queue: b"".join(units for _, units in runs) for queue, runs in by_queue(derived).items()
    }


@settings(deadline=None)
@given(chunks(count_min=1))
def test_derive_by_record_equals_the_decoded_message(chunk: RecordChunk) -> None:
    """An independent oracle: the decoded message, by RocketMQ's documentation."""
    derived = derive_plainly(
        chunk.data, chunk.starts, len(chunk.data), base=PhysicalOffset(0), delays_ms=DELAYS_MS
    )
    wanted_keys: list[tuple[int, int, int]] = []
    wanted: dict[QueueKey, list[tuple[int, int, int]]] = {}
    for view in decode_all(chunk.data):
        kind = view.sys_flag & flags.TRANSACTION_MASK
        if kind != flags.TRANSACTION_ROLLBACK:
            names = [
                b"%b#%b" % (view.topic.encode(), key)
                for key in properties.keys_of(view.stored_properties)
            ]
            wanted_keys += [(key_hash(n), view.physical_offset, NOW_MS) for n in names]
        if kind not in (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK):
            code = string_hash(view.tags or "")
            level = view.properties.get("DELAY", "")
            if view.topic == SCHEDULE_TOPIC and level.isdecimal() and int(level) > 0:
                code = NOW_MS + DELAYS_MS[min(int(level), 3) - 1]
            key = queue_key(view.topic, view.queue_id)
            wanted.setdefault(key, []).append((view.physical_offset, view.total_size, code))
    assert entries_of(derived) == wanted_keys
    found = {queue: [*UNIT.iter_unpack(units)] for queue, units in _units(derived).items()}
    assert found == wanted
