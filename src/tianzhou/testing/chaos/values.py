"""Unique values of messages. A body depends only on its value, so that a damaged body is
detected."""

from typing import Final

FILLER_MAX: Final = 200


def value_of(client: str, serial: int) -> str:
    return f"{client}-{serial}"


def serial_of(value: str) -> int:
    return int(value.rpartition("-")[2])


def body_of(value: str) -> bytes:
    """Return the body of a value: the value and filler whose length depends on the serial.
    tests/clients/scripts does the same."""
    return f"{value} {'x' * (serial_of(value) * 31 % FILLER_MAX)}".encode()


def value_in(body: bytes) -> str:
    """Return the value of a body. Raises AssertionError if the body is not as sent."""
    value = body.partition(b" ")[0].decode()
    assert body == body_of(value), f"the body of {value} is not what was sent: {body!r}"
    return value
