"""Log files that hold waiting messages stay, on masters and on replicas."""

from collections.abc import Callable
from dataclasses import replace

from transactional import COMMIT, decide, send_half

from tianzhou.base.kinds import queue_key
from tianzhou.broker import names
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.scheduled.timer import TIMER_QUEUE
from tianzhou.record.message import MessageView
from tianzhou.testing.small_broker import STORE, SmallBroker
from tianzhou.wire.names import SCHEDULE_TOPIC

HOUR_S = 3_600


def fill(broker: SmallBroker, files: int) -> None:
    start = len(broker.store.log.segments)
    while len(broker.store.log.segments) < start + files:
        assert broker.send("filling", bytes(30_000)).code == 0


def timed(broker: SmallBroker) -> MessageView:
    assert broker.send("orders", b"timed", {"TIMER_DELAY_SEC": str(40 * HOUR_S)}).code == 0
    return broker.messages(names.TIMER_TOPIC)[-1]


def delayed(broker: SmallBroker) -> MessageView:
    assert broker.send("orders", b"delayed", {"DELAY": "2"}).code == 0
    return broker.messages(SCHEDULE_TOPIC, 1)[-1]


KINDS = {"timed": timed, "delayed": delayed, "half": send_half}


def filled(send: Callable[[SmallBroker], MessageView]) -> tuple[SmallBroker, MessageView]:
    """A message waits in the middle of the log, all of which is expired but its last file."""
    config = replace(
        STORE,
        commit_log_file_bytes=256 * 1024,
        retention_hours=72,
        delay_levels_ms=(1000, 40 * HOUR_S * 1000),
    )
    broker = SmallBroker(store_config=config)
    fill(broker, 2)
    waiting = send(broker)
    fill(broker, 3)
    broker.run(seconds=10)
    broker.save_offsets()
    broker.clock.advance(seconds=30 * HOUR_S)
    return broker, waiting


class Replica(MasterSlave):
    """A slave whose progress the test sets."""

    known: Progress | None = None

    def kept_progress(self) -> Progress | None:
        return self.known


def follow(broker: SmallBroker, known: Progress | None = None) -> None:
    """Be a slave with this log: a start, after which no service of a master begins."""
    broker.stop()
    broker.open_as_slave(Replica)
    assert isinstance(broker.mode, Replica)
    broker.mode.known = known


def clean(broker: SmallBroker) -> int:
    broker.store.adopt(replace(broker.store.config, retention_hours=10))
    broker.store.clean(by_hand=True, wait=True)
    return int(broker.store.log.min_offset)


def test_master_keeps_the_files_of_messages_that_wait() -> None:
    for name, kind in KINDS.items():
        broker, waiting = filled(kind)
        assert 0 < clean(broker) <= waiting.physical_offset, name


def test_slave_keeps_files_of_messages_that_a_promotion_needs() -> None:
    for name, kind in KINDS.items():
        broker, waiting = filled(kind)
        follow(broker)
        assert 0 < clean(broker) <= waiting.physical_offset, name


def test_slave_without_progress_of_the_master_keeps_waiting_messages() -> None:
    for kind in KINDS.values():
        broker, waiting = filled(kind)
        follow(broker, Progress(timers=0, halves=0, delays={}))
        assert 0 < clean(broker) <= waiting.physical_offset


def test_slave_of_a_master_that_reports_no_timers_expires_them() -> None:
    broker, waiting = filled(timed)
    follow(broker, Progress(timers=None, halves=0, delays={}))
    assert clean(broker) > waiting.physical_offset


def test_slave_expires_messages_that_the_master_is_done_with() -> None:
    for kind in KINDS.values():
        broker, waiting = filled(kind)
        end = int(broker.store.max_offset(queue_key(waiting.topic, waiting.queue_id)))
        follow(broker, Progress(timers=end, halves=end, delays={2: end}))
        assert clean(broker) > waiting.physical_offset


def test_decided_half_does_not_prevent_expiry() -> None:
    broker, half = filled(send_half)
    decide(broker, half, COMMIT)
    assert clean(broker) > half.physical_offset


def test_damaged_record_does_not_allow_later_records_to_expire() -> None:
    def two(broker: SmallBroker) -> MessageView:
        first = timed(broker)
        fill(broker, 1)
        damaged.append(int(first.physical_offset))
        return timed(broker)

    damaged: list[int] = []
    broker, waiting = filled(two)
    broker.flush()
    log = broker.store.log
    number, at = divmod(damaged[0], log.file_bytes)
    log.segments[number].file.pwrite(at + 20, b"\xff" * 40)
    assert broker.store.max_offset(TIMER_QUEUE) == 2
    assert damaged[0] < clean(broker) <= waiting.physical_offset
