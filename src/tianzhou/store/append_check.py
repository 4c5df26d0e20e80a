"""A hook that checks every chunk before it is written. Tests install one; production has none.

Appends to the log cannot be undone, so a mistake in building records must be found before they are
written. The checker is `stored_form` of the test kit, which shares no code with the modules that
build records and derive queues from them.
"""

from collections.abc import Callable, Sequence

from tianzhou.base.kinds import Bytes, QueueKey

Check = Callable[[Bytes, int, Sequence[QueueKey | None] | None], None]
"""Called with whole records and blanks, the physical offset of the first byte, and the queues that
the records belong to; None where the writer does not know them. Raises if anything is wrong."""

installed: list[Check] = []


def check(data: Bytes, offset: int, queues: Sequence[QueueKey | None] | None) -> None:
    """Run the installed check, if any, and raise what it raises."""
    for one in installed:
        one(data, offset, queues)


def install(one: Check) -> None:
    """Check every append of this process from now on."""
    if one not in installed:
        installed.append(one)


def remove(one: Check) -> None:
    if one in installed:
        installed.remove(one)
