"""Which findings of a start an operator must see, and which are the ordinary traces of a crash."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from small_store import KEY, chunk

from tianzhou.store import incidents as kinds
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.incidents import Incident
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.tables import ConsumerOffsetTable

FILE_BYTES = 4096
CONFIG = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=40,
)


class World:
    """Three messages that are flushed and in the checkpoint, and three that are neither."""

    def __init__(self) -> None:
        self.disk, self.clock = SimDisk(), ManualClock()
        self.store = self._open()
        self.starts: list[int] = []
        self._put()
        self.store.flush()
        self.store.checkpoint()
        self._put()

    def _open(self) -> MessageStore:
        config = replace(CONFIG, flush_mode=FlushMode.ASYNC)
        return MessageStore(self.disk, "store", config, self.clock)

    def _put(self) -> None:
        for _ in range(3):
            self.starts += self.store.append(chunk(b"x" * 90)).physical_offsets()
        self.store.dispatch_all()

    def write(self, offset: int, data: bytes) -> None:
        path = f"store/commitlog/{offset // FILE_BYTES * FILE_BYTES:020d}"
        self.disk.open(path).pwrite(offset % FILE_BYTES, data)

    def restart(self) -> list[Incident]:
        self.disk.kill()
        self.store = self._open()
        return self.store.incidents.open


def _nothing(_world: World) -> None:
    """A process that was killed."""


def _torn_tail(world: World) -> None:
    world.write(world.starts[-1] + 50, bytes(200))


def _damage(world: World) -> None:
    world.store.flush()
    world.write(world.starts[4] + 100, b"!")


def _hole(world: World) -> None:
    world.write(world.starts[4] + 100, b"!")


def _group_ahead(world: World) -> None:
    _torn_tail(world)
    table = ConsumerOffsetTable(offset_table={f"{KEY.topic}@g": {0: 6}})
    world.store.tables.consumer_offsets.save(table)


def _lost_queue(world: World) -> None:
    for name in world.disk.list("store/consumequeue/orders/0"):
        world.disk.remove(f"store/consumequeue/orders/0/{name}")


def _lost_checkpoint(world: World) -> None:
    world.disk.remove("store/checkpoint")


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (_nothing, "", ""),
        (_torn_tail, "", ""),
        (_lost_checkpoint, "", ""),
        (_damage, kinds.LOG_DAMAGED, "is damaged from offset {4} to {5}"),
        (_hole, kinds.LOG_QUARANTINED, "quarantine/commitlog-{4:020d}"),
        (_group_ahead, kinds.OFFSETS_SET_BACK, "orders@g queue 0 from 6 to 5"),
        (_lost_queue, kinds.QUEUES_REBUILT, "the checkpoint counted 1 with 3"),
    ],
)
def test_start_report_lists_losses_but_no_ordinary_crash_traces(
    fault: Callable[[World], None], kind: str, said: str
) -> None:
    world = World()
    fault(world)
    found = world.restart()
    assert [one.kind for one in found] == ([kind] if kind else [])
    assert all(said.format(*world.starts) in one.text for one in found)
    assert all(one.is_loss == (kind != kinds.QUEUES_REBUILT) for one in found)
    assert world.restart() == found, "it stays until acknowledged, and is reported once"
    world.store.incidents.acknowledge(world.clock.now_ms())
    assert world.restart() == []
