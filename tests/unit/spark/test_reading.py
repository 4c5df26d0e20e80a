"""How a task decodes the records that it pulled."""

from tianzhou.base.kinds import queue_key
from tianzhou.client.bulk.reader import QueueRange, RecordRun
from tianzhou.record import flags
from tianzhou.record.batch import encode_batch
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.spark.columns import to_batch
from tianzhou.spark.reading import chunk_of
from tianzhou.spark.schema import TOPIC, arrow_schema, table_schema
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=3)
SCHEMA = arrow_schema(TOPIC, table_schema(TOPIC, ["queueOffset", "body", "tags", "sysFlag"]))


def run_of(entries: list[Entry], offsets: list[int]) -> RecordRun:
    made = build(entries, store_host=bytes(8), record_crc=False)
    stamp(made, 0, len(made), queue_offsets=offsets, physical_offset=0, store_timestamp=1)
    run = RecordRun()
    run.room(len(made.data))[:] = made.data
    run.starts, run.end = made.starts, len(made.data)
    return run


def test_inner_batch_is_unpacked_and_cut_to_the_range() -> None:
    inner = encode_batch([(0, b"m%d" % n, b"TAGS\x01t%d\x02" % n) for n in range(4)])
    key = queue_key("orders", 3)
    batch_flags = flags.INNER_BATCH | flags.NEED_UNWRAP
    run = run_of(
        [
            Entry(key, b"before"),
            Entry(key, inner, b"INNER_BASE\x0111\x02INNER_NUM\x014\x02", sys_flag=batch_flags),
        ],
        [10, 11],
    )
    chunk = chunk_of(run.data, run.starts, run.end, QueueRange(QUEUE, 10, 14))
    assert to_batch(chunk, SCHEMA).to_pylist() == [
        {"queueOffset": 10, "body": b"before", "tags": None, "sysFlag": 0},
        {"queueOffset": 11, "body": b"m0", "tags": "t0", "sysFlag": 0},
        {"queueOffset": 12, "body": b"m1", "tags": "t1", "sysFlag": 0},
        {"queueOffset": 13, "body": b"m2", "tags": "t2", "sysFlag": 0},
    ]


def test_record_run_grows_without_changing_existing_views() -> None:
    run = RecordRun()
    seen = memoryview(run.data)
    room = run.room(len(run.data) + 1)
    assert len(room) == len(seen) + 1
    assert run.data is not seen.obj
