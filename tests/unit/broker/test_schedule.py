"""The compact priority queue of times and offsets, compared with a plain sorted list."""

import sys
from random import Random

import pytest

from tianzhou.broker.writing import due_queue as schedule
from tianzhou.broker.writing.due_queue import TIME_MS_MAX, Schedule


@pytest.mark.parametrize("seed", range(20))
def test_schedule_random_operations_match_a_sorted_list(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "RUN_COUNT", 16)
    dice, entries, offsets = Random(seed), Schedule(), iter(range(1 << 30))
    model: list[tuple[int, int]] = []
    for _ in range(1500):
        match dice.choices(("push", "pop", "discard"), (6, 5, 1))[0]:
            case "push":
                model.append((dice.randrange(50), next(offsets)))
                entries.push(*model[-1])
            case "pop" if model:
                assert entries.pop() == min(model)
                model.remove(min(model))
            case "discard":
                gone = dice.choice(model) if model and dice.random() < 0.8 else (0, 1 << 35)
                assert entries.discard(gone[1]) == (gone in model)
                model = [entry for entry in model if entry != gone]
            case _:
                continue
        assert len(entries) == len(model)
        assert entries.first() == min(model, default=None)
        assert entries.lowest_offset() == min((offset for _, offset in model), default=None)
    assert list(entries) == [offset for _, offset in sorted(model)]


def test_schedule_times_out_of_range_count_as_the_nearer_bound() -> None:
    entries = Schedule()
    for rank in range(schedule.RUN_COUNT):
        entries.push(10**19 if rank else -5, rank)
    assert entries.pop() == (0, 0)
    assert entries.pop() == (TIME_MS_MAX, 1)


@pytest.mark.slow
def test_schedule_large_and_half_consumed_holds_at_most_32_bytes_per_entry() -> None:
    """Counts what the arrays hold in the worst state: just before runs are merged again."""
    entries, dice = Schedule(), Random(1)
    for rank in range(100_000):
        entries.push(dice.randrange(1 << 40), rank)
    worst = 0.0
    while len(entries) > 20_000:
        entries.pop()
        if len(entries) % 500 == 0:
            arrays = sum(
                sys.getsizeof(run.times) + sys.getsizeof(run.offsets) for _, run in entries._heads
            )
            worst = max(worst, arrays / (len(entries) - len(entries._fresh)))
            assert len(entries._fresh) < schedule.RUN_COUNT
    assert worst < 33
