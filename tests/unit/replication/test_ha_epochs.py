"""Where two logs part."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import (
    Mark,
    Marks,
    appointed,
    check_unique,
    epoch_of,
    first,
    is_later,
    known_at,
    parting,
    restarted,
)


def marks(*starts: int) -> Marks:
    return tuple(Mark(epoch=1, run=n, start=s, token=f"t{n}") for n, s in enumerate(starts))


def test_parting_of_equal_histories_is_the_end_of_the_shorter() -> None:
    assert parting(marks(0, 100), 250, marks(0, 100)) == 250
    assert parting(marks(0), 80, marks(0, 100)) == 80
    # The master started a new epoch at 100: what the slave has beyond differs.
    assert parting(marks(0), 130, marks(0, 100)) == 100


def test_parting_after_a_promotion_elsewhere_is_its_start() -> None:
    old = first("aa")
    new = appointed(old, PhysicalOffset(500), token="bb", epoch=2)
    ours = restarted(old, PhysicalOffset(800), token="cc")
    assert parting(ours, 900, new) == 500
    assert is_later(new, ours)
    assert not is_later(ours, new)
    assert epoch_of(new) == 2


def test_parting_of_masters_promoted_at_once_is_their_promotion() -> None:
    old = first("aa")
    one = appointed(old, PhysicalOffset(500), token="bb", epoch=2)
    other = appointed(old, PhysicalOffset(500), token="cc", epoch=2)
    assert parting(one, 700, other) == 500


def test_parting_of_unrelated_logs_is_none() -> None:
    assert parting(first("aa"), 10, first("bb")) is None
    assert parting((), 10, first("bb")) is None


def test_known_at_excludes_epochs_beyond_the_end_of_the_log() -> None:
    assert known_at(marks(0, 100, 200), 150) == marks(0, 100)
    assert appointed(marks(0, 100, 200), PhysicalOffset(150), token="x", epoch=2)[:-1] == marks(
        0, 100
    )
    assert epoch_of(appointed(first("a"), PhysicalOffset(0), token="x", epoch=10)) == 10


def test_restarted_without_writes_keeps_one_mark() -> None:
    """A greeting has room for some hundred marks: a master may crash more often than that."""
    begun = found = restarted(first("aa"), PhysicalOffset(100), token="t0")
    for crash in range(2000):
        found = restarted(found, PhysicalOffset(100), token=f"t{crash}")
    assert len(found) == 2
    assert found[-1].run == 2001
    # Who got something of a run that was lost parts from this log where it began.
    assert parting(begun, 150, found) == 100
    assert parting(first("aa"), 150, found) == 100
    lost_all = restarted(first("aa"), PhysicalOffset(0), token="t1")
    assert parting(first("aa"), 150, lost_all) == 0


@given(
    common=st.lists(st.integers(1, 20), max_size=4),
    mine=st.lists(st.integers(1, 20), max_size=3),
    theirs=st.lists(st.integers(1, 20), max_size=3),
    rest=st.integers(0, 30),
)
def test_parting_is_the_end_of_bytes_with_the_same_author(
    common: list[int], mine: list[int], theirs: list[int], rest: int
) -> None:
    """For any two histories with a common past, both have the same author of every byte up to the
    parting."""

    def history(sizes: list[int], branch: str, shared: int) -> Marks:
        found, at = [Mark(epoch=1, run=0, start=0, token="root")], 0
        for rank, size in enumerate(sizes):
            at += size
            token = f"c{rank}" if rank < shared else f"{branch}{rank}"
            found.append(Mark(epoch=1, run=rank + 1, start=at, token=token))
        return tuple(found)

    ours = history(common + mine, "m", len(common))
    other = history(common + theirs, "t", len(common))
    end = ours[-1].start + rest
    cut = parting(ours, end, other)
    assert cut is not None
    assert cut <= end

    def author(history: Marks, offset: int) -> Mark:
        return max((mark for mark in history if mark.start <= offset), key=lambda m: m.run)

    assert all(author(ours, at) == author(other, at) for at in range(cut))


def test_check_unique_rejects_two_masters_of_one_epoch() -> None:
    old = first("aa")
    one = appointed(old, PhysicalOffset(500), token="bb", epoch=2)
    other = appointed(old, PhysicalOffset(400), token="cc", epoch=2)
    with pytest.raises(PeerRefused, match="two masters of this group had epoch 2"):
        check_unique(one, 501, other)
    check_unique(one, 500, other)  # it wrote nothing under that epoch
    check_unique(one, 900, restarted(one, PhysicalOffset(800), token="dd"))
    check_unique(old, 900, one)
    check_unique((), 900, one)


@pytest.mark.parametrize("wrong", [{"epoch": 2**53}, {"epoch": -1}, {"start": 2**63}, {"run": -1}])
def test_mark_with_values_out_of_bounds_is_rejected(wrong: dict[str, int]) -> None:
    text = msgspec.json.encode({"epoch": 1, "run": 0, "start": 0, "token": "aa"} | wrong)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Mark)
