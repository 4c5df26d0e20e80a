"""JSON as Java's fastjson writes it, which is not always JSON.

Two habits break other parsers: numbers as bare keys, `{0:"a"}`, and whole objects as keys,
`{{"queueId":0}:5}`. `to_standard` rewrites both as strings, so that msgspec, which is strict and
fast, can read the rest into typed structs; an object key becomes the string of its compact text.
It is only run on input that msgspec has refused.

The other way round, Java refuses a string where it wants a message queue as a key, so `object_map`
writes such maps with objects as keys. Bare numbers are never written: everybody reads quoted ones.

Configuration files written by Java are read with this too.
"""

import enum
import re
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.errors import BodyError, CannotEncode

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Body = TypeVar("Body")

DEPTH_MAX: Final = 64
"""The deepest body of the protocol has eight levels."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_TOKEN: Final = re.compile(
    rb"""
    [ \t\r\n]*
    (?:
      ( "[^"\\]*+ (?: \\. [^"\\]*+ )*+"
      | -?[0-9]++ (?: \.[0-9]++ )? (?: [eE][+-]?[0-9]++ )?
      | true | false | null
      )
    | ( [{}\[\]:,] )
    )
    """,
    re.DOTALL | re.VERBOSE,
)
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_INTEGER: Final = re.compile(rb"-?[0-9]+")


class _Next(enum.Enum):
    """What may come next; the value is the word for it in a complaint."""

    VALUE = "a value"
    VALUE_OR_CLOSE = "a value or ]"
    KEY = "a key"
    KEY_OR_CLOSE = "a key or }"
    COLON = "a colon"
    COMMA_OR_CLOSE = "a comma or the end of the list or object"
    END = "the end"


_KEYS: Final = (_Next.KEY, _Next.KEY_OR_CLOSE)
_VALUES: Final = (_Next.VALUE, _Next.VALUE_OR_CLOSE)
_CLOSES: Final = (_Next.VALUE_OR_CLOSE, _Next.KEY_OR_CLOSE, _Next.COMMA_OR_CLOSE)


class _Standardiser:
    """One pass over the text with a stack of open brackets; no recursion."""

    def __init__(self, data: Bytes) -> None:
        self._data = bytes(data)
        self._out: list[bytes] = []
        # Each open bracket, with where in `_out` a key object began; None for ordinary brackets.
        self._open: list[tuple[bytes, int | None]] = []
        self._in_key = False
        self._next = _Next.VALUE

    def run(self) -> bytes:
        data, at = self._data, 0
        while self._next is not _Next.END:
            match = _TOKEN.match(data, at)
            if match is None:
                raise self._unknown(at)
            at = match.end()
            token, mark = match.groups()
            if mark:
                self._next = self._take_mark(mark, at - 1)
            else:
                self._next = self._take_scalar(token, at - len(token))
        if _BLANK.fullmatch(data, at) is None:
            raise BodyError(f"more text after the end of the JSON at byte {at}")
        return b"".join(self._out)

    def _take_scalar(self, token: bytes, start: int) -> _Next:
        if self._next in _VALUES:
            self._out.append(token)
            return self._after_value()
        if self._next not in _KEYS:
            raise self._refusal(token, start)
        if _INTEGER.fullmatch(token):
            token = b'"' + token + b'"'
        elif not token.startswith(b'"'):
            raise self._refusal(token, start)
        self._out.append(token)
        return _Next.COLON

    def _take_mark(self, mark: bytes, start: int) -> _Next:
        if mark in b"{[":
            return self._take_open(mark, start)
        if mark in b"}]":
            return self._take_close(mark, start)
        self._out.append(mark)
        if mark == b":" and self._next is _Next.COLON:
            return _Next.VALUE
        if mark == b"," and self._next is _Next.COMMA_OR_CLOSE:
            return _Next.KEY if self._open[-1][0] == b"{" else _Next.VALUE
        raise self._refusal(mark, start)

    def _take_open(self, mark: bytes, start: int) -> _Next:
        key_start = None
        if mark == b"{" and self._next in _KEYS:
            # Quoting doubles the backslashes inside; a key in a key in a key would explode.
            if self._in_key:
                raise BodyError(f"an object key inside an object key at byte {start}")
            self._in_key, key_start = True, len(self._out)
        elif self._next not in _VALUES:
            raise self._refusal(mark, start)
        if len(self._open) >= DEPTH_MAX:
            raise BodyError(f"more than {DEPTH_MAX} levels of nesting at byte {start}")
        self._open.append((mark, key_start))
        self._out.append(mark)
        return _Next.KEY_OR_CLOSE if mark == b"{" else _Next.VALUE_OR_CLOSE

    def _take_close(self, mark: bytes, start: int) -> _Next:
        opened = b"{" if mark == b"}" else b"["
        if self._next not in _CLOSES or self._open[-1][0] != opened:
            raise self._refusal(mark, start)
        _, key_start = self._open.pop()
        self._out.append(mark)
        if key_start is None:
            return self._after_value()
        key = b"".join(self._out[key_start:])
        self._out[key_start:] = [_quote(key, start)]
        self._in_key = False
        return _Next.COLON

    def _after_value(self) -> _Next:
        return _Next.COMMA_OR_CLOSE if self._open else _Next.END

    def _unknown(self, at: int) -> BodyError:
        while at < len(self._data) and self._data[at] in b" \t\r\n":
            at += 1
        if at == len(self._data):
            return BodyError(f"the JSON ends at byte {at} where {self._next.value} should be")
        return self._refusal(self._data[at : at + 16], at)

    def _refusal(self, token: bytes, at: int) -> BodyError:
        return BodyError(f"{token[:32]!r} at byte {at} where {self._next.value} should be")


def _quote(key: bytes, start: int) -> bytes:
    try:
        return msgspec.json.encode(key.decode())
    except UnicodeDecodeError as error:
        raise BodyError(f"object key that ends at byte {start}: {error.reason}") from None


def to_standard(data: Bytes) -> bytes:
    """The same value as standard, compact JSON."""
    return _Standardiser(data).run()


def parse(data: Bytes) -> Json:
    """Any JSON or fastjson text as plain values. Object keys are the compact text of the object."""
    try:
        return msgspec.json.decode(data)
    except _UNREADABLE:
        return _decode_standard(to_standard(data))


def _decode_standard(data: bytes) -> Json:
    try:
        return msgspec.json.decode(data)
    except _UNREADABLE as error:
        raise BodyError(f"JSON of {len(data)} bytes: {error}") from None


class BodyReader(Generic[Body]):
    """Reads bodies of one type. Create it once, because it compiles a decoder.

    Null counts as absent, as with Java. `tidy` may normalize the spellings of other
    peers; it receives the plain values and changes them in place.
    """

    def __init__(self, kind: type[Body], tidy: Callable[[Json], None] | None = None) -> None:
        self._kind = kind
        self._tidy = tidy
        self._decode = msgspec.json.Decoder(kind, strict=False).decode

    def read(self, data: Bytes) -> Body:
        try:
            return self._decode(data)
        except _UNREADABLE:
            return self._read_slowly(data)

    def _read_slowly(self, data: Bytes) -> Body:
        value = without_nulls(parse(data))
        if self._tidy is not None:
            self._tidy(value)
        try:
            return msgspec.convert(value, self._kind, strict=False)
        except msgspec.ValidationError as error:
            raise BodyError(f"{self._kind.__name__}: {error}") from None


def without_nulls(value: Json, depth: int = DEPTH_MAX) -> Json:
    if depth == 0:
        raise BodyError(f"more than {DEPTH_MAX} levels of nesting")
    if isinstance(value, dict):
        return {
            key: without_nulls(item, depth - 1) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item, depth - 1) for item in value]
    return value


def encode(value: object) -> bytes:
    """Compact JSON of plain values and structs. Numeric keys are quoted, which everybody reads."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise CannotEncode(f"text in a body: {error}") from None


def object_map(entries: Iterable[tuple[object, object]]) -> msgspec.Raw:
    """A map whose keys are objects, for the few responses where Java expects that."""
    pairs = (encode(key) + b":" + encode(value) for key, value in entries)
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def escape_non_ascii(data: bytes) -> bytes:
    r"""The same JSON with non-ASCII characters as `\uXXXX`, which some clients require."""
    if data.isascii():
        return data
    return re.sub(r"[^\x00-\x7f]", _escape, data.decode()).encode("ascii")


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
