"""What is promised, and what is said when a promise is not kept."""

from dataclasses import dataclass

import pytest

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.durability import Durability, Outcome


@dataclass
class Copies:
    """Others, as the promise sees them."""

    at: int
    why_not: Outcome | None = None
    too_late: Outcome = Outcome.FLUSH_SLAVE_TIMEOUT

    @property
    def replicated(self) -> PhysicalOffset:
        return PhysicalOffset(self.at)

    def missing(self) -> Outcome | None:
        return self.why_not


def promise(flushed: int, *, sync: bool, copies: Copies | None) -> Durability:
    return Durability(
        flushed=lambda: PhysicalOffset(flushed),
        flush_waits=sync,
        flush_timeout_s=5.0,
        replicas=copies,
        replicas_timeout_s=3.0,
    )


@pytest.mark.parametrize(
    ("sync", "replicated", "confirmed"),
    [(True, None, 100), (False, 70, 70), (True, 70, 70), (True, 130, 100)],
)
def test_durable_offset_is_the_lowest_of_the_required_ones(
    sync: bool, replicated: int | None, confirmed: int
) -> None:
    copies = None if replicated is None else Copies(replicated)
    made = promise(100, sync=sync, copies=copies)
    assert made.confirmed() == confirmed
    assert made.verdict(PhysicalOffset(confirmed)) is Outcome.DURABLE
    assert made.verdict(PhysicalOffset(confirmed + 1)) is None


def test_durable_offset_without_requirements_is_the_end() -> None:
    made = promise(0, sync=False, copies=None)
    assert not made.waits
    assert made.verdict(PhysicalOffset(1000)) is Outcome.DURABLE


def test_durable_offset_ignores_slaves_that_are_not_connected() -> None:
    copies = Copies(50, why_not=Outcome.SLAVE_NOT_AVAILABLE)
    made = promise(100, sync=True, copies=copies)
    assert made.verdict(PhysicalOffset(60)) is Outcome.SLAVE_NOT_AVAILABLE
    assert made.verdict(PhysicalOffset(50)) is Outcome.DURABLE


def test_durability_timeout_reports_what_was_late() -> None:
    made = promise(100, sync=True, copies=Copies(50))
    assert made.failure(PhysicalOffset(101)) is Outcome.FLUSH_DISK_TIMEOUT
    assert made.failure(PhysicalOffset(90)) is Outcome.FLUSH_SLAVE_TIMEOUT
    assert made.timeout_s == 3.0
    assert promise(0, sync=True, copies=None).timeout_s == 5.0
