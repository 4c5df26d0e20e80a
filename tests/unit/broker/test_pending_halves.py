"""Undecided half messages in memory, compared with a plain dictionary."""

import tracemalloc
from random import Random

import pytest

from tianzhou.broker.transactions import pending_halves
from tianzhou.broker.transactions.pending_halves import CHECKS_MAX, PendingHalves


@pytest.mark.parametrize("seed", range(10))
def test_pending_halves_random_operations_match_a_dictionary(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_halves, "_COMPACT_MIN", 8)
    dice, pending, offset = Random(seed), PendingHalves(), 0
    model: dict[int, tuple[str, int]] = {}
    for _ in range(2000):
        if dice.random() < 0.52:
            offset += dice.randrange(1, 5)
            group, checks = f"group-{dice.randrange(30)}", dice.randrange(3)
            pending.add(offset, group, checks)
            model[offset] = (group, checks)
        else:
            gone = dice.choice(list(model)) if model and dice.random() < 0.8 else offset + 1
            assert pending.discard(gone) == (model.pop(gone, None) is not None)
        if model:
            asked = dice.choice(list(model))
            model[asked] = (model[asked][0], model[asked][1] + 1)
            pending.set_checks(asked, model[asked][1])
        assert len(pending) == len(model)
        assert pending.oldest == next(iter(model), None)
    assert list(pending) == list(model)
    assert {one: (pending.group(one), pending.checks(one)) for one in pending} == model
    assert offset + 1 not in pending


def test_pending_halves_that_are_decided_leave_no_group_name_behind() -> None:
    pending = PendingHalves()
    for offset in range(10_000):
        pending.add(offset, f"group-{offset}", 0)
        if offset != 17:
            pending.discard(offset)
    assert list(pending) == [17]
    assert pending.group(17) == "group-17"
    assert len(pending._names) <= 3 * pending_halves._COMPACT_MIN


@pytest.mark.slow
def test_pending_halves_100000_take_under_20_bytes_each() -> None:
    tracemalloc.start()
    try:
        pending = PendingHalves()
        for offset in range(100_000):
            pending.add(offset, "buyers", 0)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(pending) < 20


def test_pending_halves_check_counts_out_of_range_are_limited() -> None:
    pending = PendingHalves()
    pending.add(1, "buyers", 10**18)
    pending.add(2, "buyers", 0)
    pending.set_checks(2, CHECKS_MAX + 1)
    assert pending.checks(1) == pending.checks(2) == CHECKS_MAX
    with pytest.raises(KeyError):
        pending.checks(3)
