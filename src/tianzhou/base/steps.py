"""Long work in the event loop, split into steps between which the loop serves clients.

A function that may have to visit 50,000 queues is a generator that yields after a few milliseconds
of work and returns its result at the end. The caller that runs it decides what happens between
steps.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all steps now and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
