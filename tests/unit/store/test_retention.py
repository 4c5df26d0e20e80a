from pathlib import Path

import pytest
from small_store import FILE_BYTES, open_store, put

from tianzhou.store.config import StoreConfig
from tianzhou.store.retention import Pressure, pressure_of, verdict
from tianzhou.testing.sim.clock import ManualClock

HOUR = 3_600_000
CONFIG = StoreConfig(retention_hours=10, retention_at_hours=(4,))
OLD, YOUNG = 10 * HOUR, 10 * HOUR - 1


@pytest.mark.parametrize(
    ("used", "pressure"),
    [
        (0.0, Pressure.NONE),
        (0.75, Pressure.NONE),
        (0.76, Pressure.CLEAN),
        (0.85, Pressure.CLEAN),
        (0.86, Pressure.FORCE),
        (0.90, Pressure.FORCE),
        (0.91, Pressure.REFUSE),
        (1.0, Pressure.REFUSE),
    ],
)
def test_pressure_of_follows_the_used_ratio(used: float, pressure: Pressure) -> None:
    assert pressure_of(used, CONFIG) is pressure


@pytest.mark.parametrize(
    ("ages", "pressure", "hour", "by_hand", "files"),
    [
        ([], Pressure.NONE, 4, False, 0),
        ([OLD, OLD, YOUNG], Pressure.NONE, 4, False, 2),
        ([OLD, OLD, YOUNG], Pressure.NONE, 5, False, 0),
        ([OLD, OLD, YOUNG], Pressure.NONE, 5, True, 2),
        ([OLD, OLD, YOUNG], Pressure.CLEAN, 5, False, 2),
        ([YOUNG, YOUNG], Pressure.CLEAN, 4, False, 0),
        # Behind a young file the rest stays, whatever its age: the log has no gaps.
        ([OLD, YOUNG, OLD], Pressure.NONE, 4, False, 1),
        ([YOUNG, YOUNG], Pressure.FORCE, 5, False, 1),
        ([OLD, OLD, YOUNG], Pressure.FORCE, 5, False, 2),
        ([YOUNG], Pressure.REFUSE, 5, False, 1),
        ([], Pressure.REFUSE, 5, False, 0),
        # A clock that was set back makes files of the future.
        ([-HOUR, OLD], Pressure.NONE, 4, False, 0),
    ],
)
def test_verdict_selects_the_files_to_delete(
    ages: list[int], pressure: Pressure, hour: int, by_hand: bool, files: int
) -> None:
    assert verdict(ages, pressure, hour, CONFIG, by_hand=by_hand).files == files


def test_verdict_without_a_reason_deletes_nothing() -> None:
    assert verdict([OLD], Pressure.NONE, 5, CONFIG, by_hand=False).reason == ""
    assert verdict([OLD], Pressure.FORCE, 5, CONFIG, by_hand=False).reason


@pytest.mark.parametrize("damaged", [1, 2], ids=["the next file", "the last file"])
def test_retention_keeps_a_file_when_the_next_lost_its_first_message(
    tmp_path: Path, damaged: int
) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)  # keeps messages for an hour
    while len(store.log.segments) < 3:
        put(store, b"x" * 900)
    with (tmp_path / "commitlog" / f"{damaged * FILE_BYTES:020d}").open("r+b") as file:
        file.write(bytes(200))
    assert store.clean(by_hand=True) == 0
    clock.advance(hours=2)
    assert store.clean(by_hand=True) == 3 - damaged, "files without a known date stay"
    store.close()


def test_retention_floor_keeps_expired_files_unless_the_disk_is_full(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    while len(store.log.segments) < 4:
        put(store, bytes(200))
    clock.advance(seconds=10 * 3_600)
    retention, now_ms = store.retention, clock.now_ms()

    def due(pressure: Pressure) -> int:
        return retention.due(pressure, now_ms=now_ms, by_hand=True)

    every = due(Pressure.NONE)
    assert every == 3
    retention.floor = lambda: store.log.segments[1].start
    assert due(Pressure.NONE) == due(Pressure.CLEAN) == 1
    retention.floor = lambda: store.log.segments[1].start - 1
    assert due(Pressure.NONE) == 0
    assert due(Pressure.FORCE) == every
    store.close()


def test_maintain_deletes_no_file_before_the_begin_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a flush thread the store does not wait for the disk: `maintain` removes the files."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    while len(store.log.segments) < 4:
        put(store, bytes(200))
    store.flush()
    store.checkpoint(whole=True)
    errands = list[object]()
    # The thread has yet to run.
    monkeypatch.setattr(store._flusher, "begin_errands", lambda: errands.append(None))
    for _ in range(2):
        store._flusher.record_begin(store.retention.begin_after(3))
        store.maintain()
    assert len(errands) == 1, "the same begin is recorded once"
    assert len(store.log.segments) == 4
    assert store._flusher.run_errands()
    store.maintain()
    assert [segment.start for segment in store.log.segments] == [3 * FILE_BYTES]
    monkeypatch.undo()
    store.close()
    reopened = open_store(tmp_path, clock=clock)
    assert reopened.incidents.open == []
    reopened.close()
