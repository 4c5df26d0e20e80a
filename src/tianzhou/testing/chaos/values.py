"""Values are unique names of messages; a body is made of its value alone, so that a body which is
not whole is seen."""

from typing import Final

FILLER_MAX: Final = 200


def value_of(client: str, serial: int) -> str:
    return f"{client}-{serial}"


def serial_of(value: str) -> int:
    return int(value.rpartition("-")[2])


def body_of(value: str) -> bytes:
    """The value, and as much filler as its serial says. tests/clients/scripts does the same."""
    return f"{value} {'x' * (serial_of(value) * 31 % FILLER_MAX)}".encode()


def value_in(body: bytes) -> str:
    """The value of a body. AssertionError if it is not the body that was sent."""
    value = body.partition(b" ")[0].decode()
    assert body == body_of(value), f"the body of {value} is not what was sent: {body!r}"
    return value
