import pytest

from tianzhou.store.config import PAGE
from tianzhou.store.flush import Pace


@pytest.mark.parametrize(
    ("waiting", "idle_s", "due"),
    [
        (0, 100.0, False),
        (1, 0.0, False),
        (4 * PAGE - 1, 9.9, False),
        (4 * PAGE, 0.0, True),
        (1, 10.0, True),
        (-5, 100.0, False),
    ],
)
def test_when_a_flush_is_due(waiting: int, idle_s: float, due: bool) -> None:
    pace = Pace(interval_s=0.5, pages_min=4, thorough_s=10)
    assert pace.is_due(waiting, idle_s) is due
