"""Arithmetic that must agree with Java to the bit."""

from itertools import repeat
from operator import mul
from typing import Final

_POWERS_MAX: Final = 256
# _WEIGHTS[-n:] are the weights of the characters of a string of length n.
_WEIGHTS: Final = tuple(map(pow, repeat(31), reversed(range(_POWERS_MAX)), repeat(1 << 32)))


def to_int32(value: int) -> int:
    """The value as Java's int keeps it: 32 bits, signed."""
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def string_hash(text: str | bytes) -> int:
    """Java's `String.hashCode`, signed 32 bits. Bytes are read as UTF-8, as Java reads them."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    if text.isascii() and len(text) <= _POWERS_MAX:
        # One character is one UTF-16 unit; a weighted sum runs in C from end to end.
        total = sum(map(mul, text, _WEIGHTS[_POWERS_MAX - len(text) :]))
        return to_int32(total)
    # Java's decoder puts U+FFFD for bytes that are not UTF-8.
    return _hash_of_units(text.decode("utf-8", "replace").encode("utf-16-be"))


def _hash_of_units(utf16: bytes) -> int:
    total = 0
    for at in range(0, len(utf16), 2):
        total = (total * 31 + (utf16[at] << 8 | utf16[at + 1])) & 0xFFFFFFFF
    return to_int32(total)


def key_hash(text: str | bytes) -> int:
    """The hash of the key index: the absolute value, where abs(-2**31) counts as 0."""
    value = abs(string_hash(text))
    return 0 if value == 0x8000_0000 else value
