"""Answers that are kept for a moment, so that whoever looks does not slow those who work."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tianzhou.base.steps import Steps

T = TypeVar("T")

SHARE: Final = 20
"""An answer is kept for so many times the time that it took: pages take a twentieth of the broker
at most, however many people look at however much."""


class PollCache(Generic[T]):
    """Owner: the broker loop."""

    def __init__(self, make: Callable[[], Steps[T]], monotonic_s: Callable[[], float]) -> None:
        self._make = make
        self._monotonic_s = monotonic_s
        self._kept: tuple[T, float] | None = None

    def get(self) -> Steps[T]:
        """As it is now, or as it was a moment ago."""
        begun_s, taken_s = self._monotonic_s(), 0.0
        if self._kept is not None and begun_s < self._kept[1]:
            return self._kept[0]
        steps = self._make()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
                break
            taken_s += self._monotonic_s() - begun_s
            yield
            begun_s = self._monotonic_s()
        end_s = self._monotonic_s()
        self._kept = found, end_s + (taken_s + end_s - begun_s) * SHARE
        return found
