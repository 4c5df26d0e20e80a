"""Checks of arguments, which run in the public method so that errors point to the caller."""

from collections.abc import Iterable, Mapping
from math import isfinite
from operator import index
from typing import Final, cast

from tianzhou.base.errors import UsageError
from tianzhou.wire.queues import MessageQueue

OFFSET_MAX: Final = (1 << 63) - 1
"""Offsets are signed 64-bit integers, on disk and on the wire."""
COUNT_MAX: Final = (1 << 31) - 1


def wrong_type(name: str, value: object, wanted: str) -> UsageError:
    kind = type(value).__name__
    return UsageError(f"{name} {repr(value)[:42]} is of type {kind}; it must be {wanted}")


def checked_queue(queue: object) -> MessageQueue:
    if not isinstance(queue, MessageQueue):
        raise wrong_type("queue", queue, "a MessageQueue, such as one of `queues(topic)`")
    return queue


def checked_queues(queues: object) -> list[MessageQueue]:
    """The queues of any iterable."""
    if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
        raise wrong_type("queues", queues, "a list of MessageQueue, such as `queues(topic)`")
    return [checked_queue(queue) for queue in cast("Iterable[object]", queues)]


def checked_offset(offset: object) -> int:
    return _checked_int("offset", offset, 0, OFFSET_MAX)


def checked_offsets(offsets: object) -> dict[MessageQueue, int]:
    if not isinstance(offsets, Mapping):
        raise wrong_type("offsets", offsets, "a dict of offsets by MessageQueue")
    table = cast("Mapping[object, object]", offsets)
    return {checked_queue(queue): checked_offset(offset) for queue, offset in table.items()}


def check_seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float):
        raise wrong_type(name, value, "a number of seconds")
    if not isfinite(value):
        raise UsageError(f"{name} is {value}; it must be a finite number of seconds")


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise wrong_type(name, value, "text")


def checked_count(name: str, count: object) -> int:
    return _checked_int(name, count, 1, COUNT_MAX)


def _checked_int(name: str, value: object, least: int, most: int) -> int:
    try:
        number = index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise wrong_type(name, value, f"an integer from {least} to {most}") from None
    if not least <= number <= most:
        raise UsageError(f"{name} {number} is out of range; it must be from {least} to {most}")
    return number
