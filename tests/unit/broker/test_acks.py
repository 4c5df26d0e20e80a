"""Answers that wait for the medium."""

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.acks import Acks


def parked(*ends: int) -> tuple[Acks, list[tuple[int, bool]]]:
    acks, told = Acks(), list[tuple[int, bool]]()
    for rank, end in enumerate(ends):
        acks.park(
            PhysicalOffset(end), 10.0 + rank, lambda durable, end=end: told.append((end, durable))
        )
    return acks, told


def test_everything_up_to_the_durable_offset_is_answered_in_order() -> None:
    acks, told = parked(100, 200, 200, 300)
    acks.release(PhysicalOffset(99))
    assert told == []
    acks.release(PhysicalOffset(200))
    assert told == [(100, True), (200, True), (200, True)]
    assert len(acks) == 1


def test_who_waits_too_long_is_told() -> None:
    acks, told = parked(100, 200, 300)
    acks.expire(9.9)
    assert told == []
    acks.expire(11.0)
    assert told == [(100, False), (200, False)]
    acks.release(PhysicalOffset(300))
    assert told[-1] == (300, True)


def test_a_broken_store_answers_everybody_once() -> None:
    acks, told = parked(100, 200)
    acks.fail_all()
    acks.fail_all()
    acks.release(PhysicalOffset(1000))
    assert told == [(100, False), (200, False)]
