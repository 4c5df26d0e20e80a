"""Work of the event loop that takes long, in steps between which the loop serves others.

A function that may have to visit 50,000 queues is a generator that yields after a few milliseconds
of work and returns its result at the end. Whoever runs it decides what happens in between.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all steps now; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
