"""Answers that wait for the medium, and for others."""

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.writing.log_writer import Acks
from tianzhou.replication.durability import Outcome

DURABLE, LATE = Outcome.DURABLE, Outcome.FLUSH_DISK_TIMEOUT


def parked(*ends: int) -> tuple[Acks, list[tuple[int, Outcome]]]:
    acks, told = Acks(), list[tuple[int, Outcome]]()
    for rank, end in enumerate(ends):
        acks.park(
            PhysicalOffset(end), 10.0 + rank, lambda outcome, end=end: told.append((end, outcome))
        )
    return acks, told


def test_acks_up_to_the_durable_offset_are_released_in_order() -> None:
    acks, told = parked(100, 200, 200, 300)
    acks.release(PhysicalOffset(99))
    assert told == []
    acks.release(PhysicalOffset(200))
    assert told == [(100, DURABLE), (200, DURABLE), (200, DURABLE)]
    assert len(acks) == 1


def test_acks_that_time_out_report_what_they_waited_for() -> None:
    acks, told = parked(100, 200, 300)

    def why(end: PhysicalOffset) -> Outcome:
        return LATE if end > 100 else Outcome.FLUSH_SLAVE_TIMEOUT

    acks.expire(9.9, why)
    assert told == []
    acks.expire(11.0, why)
    assert told == [(100, Outcome.FLUSH_SLAVE_TIMEOUT), (200, LATE)]
    acks.release(PhysicalOffset(300))
    assert told[-1] == (300, DURABLE)


def test_acks_of_a_broken_store_fail_every_request_once() -> None:
    acks, told = parked(100, 200)
    acks.fail_all(LATE)
    acks.fail_all(LATE)
    acks.release(PhysicalOffset(1000))
    assert told == [(100, LATE), (200, LATE)]
