"""Input of `tianzhou produce`: lines, JSON lines, or generated messages."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, Final, cast

from tianzhou.admin.commands.message_facts import SENT, TOLD
from tianzhou.base.errors import UsageError

if TYPE_CHECKING:
    from tianzhou.record.message import Message

_MORE: Final = ("delay_s", "deliver_ms", "delay_level", "sharding_key")
_KNOWN: Final = frozenset((*SENT, *TOLD, *_MORE))


@dataclass(frozen=True, slots=True)
class Template:
    """Defaults for all messages of one command; a JSON line may override them."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: timedelta | None = None
    sharding_key: str | None = None
    light_queues: tuple[str, ...] = ()

    def message(self, body: bytes) -> "Message":
        from tianzhou.record.message import Message

        return Message(
            self.topic,
            body,
            tags=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay=self.delay,
            sharding_key=self.sharding_key,
            light_queues=self.light_queues,
        )


def from_lines(stream: IO[bytes], template: Template) -> "Iterator[Message]":
    """Each line is a body; empty lines are skipped, because a body must not be empty."""
    for number, line in enumerate(stream, 1):
        body = line.rstrip(b"\r\n")
        if body:
            try:
                yield template.message(body)
            except UsageError as error:
                raise UsageError(f"line {number}: {error}") from error


def whole(stream: IO[bytes], template: Template) -> "Iterator[Message]":
    """Read the whole input as the body of one message."""
    yield template.message(stream.read())


def from_json(stream: IO[bytes], template: Template) -> "Iterator[Message]":
    """Each line is an object: body or body_base64, tags, keys, properties, and more."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            yield _decoded(line, template)
        except (ValueError, UsageError) as error:
            raise UsageError(f"line {number}: {error}") from error


def _decoded(line: bytes, template: Template) -> "Message":
    try:
        given: Any = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"invalid JSON: {error}; omit --format json to send lines unchanged"
        ) from error
    if not isinstance(given, dict):
        raise UsageError('not a JSON object; use {"body": "two apples", "keys": ["T1"]}')
    return _message(cast("dict[str, Any]", given), template)


def _message(given: dict[str, Any], template: Template) -> "Message":
    from tianzhou.record.message import Message

    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        known = ", ".join((*SENT, *_MORE))
        raise UsageError(f"unknown field {', '.join(unknown)}; fields are: {known}")
    delay = _delay(given)
    return Message(
        template.topic,
        _body(given),
        tags=_typed(given, "tags", str, template.tag),
        keys=_listed(given, "keys", template.keys),
        properties={**template.properties, **_texts(given)},
        delay_level=_typed(given, "delay_level", int, 0) or 0,
        delay=template.delay if delay is None else delay,
        deliver_at=_delivery_time(given),
        sharding_key=_typed(given, "sharding_key", str, template.sharding_key),
        light_queues=_light_queues(given, template),
    )


def _delay(given: dict[str, Any]) -> timedelta | None:
    seconds = _typed(given, "delay_s", int | float, None)
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"invalid delay_s {seconds}: {error}") from error


def _delivery_time(given: dict[str, Any]) -> datetime | None:
    time_ms = _typed(given, "deliver_ms", int | float, None)
    try:
        return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"invalid deliver_ms {time_ms}: {error}") from error


def _typed(given: dict[str, Any], name: str, kind: type | UnionType, default: Any) -> Any:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{name} must be {'text' if kind is str else 'a number'}, got {value!r}")
    return value


def _body(given: dict[str, Any]) -> bytes:
    body, encoded = given.get("body"), given.get("body_base64")
    if (body is None) == (encoded is None):
        raise UsageError("pass exactly one of body and body_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise UsageError(f"body_base64 is not valid base64: {error}") from error
    # An object as the body is what most people mean by JSON.
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def _light_queues(given: dict[str, Any], template: Template) -> tuple[str, ...]:
    """`tianzhou consume --json` prints them with offsets, which are not sent."""
    named = given.get("light_queues")
    if isinstance(named, dict):
        given = {"light_queues": list(cast("dict[str, Any]", named))}
    return _listed(given, "light_queues", template.light_queues)


def _listed(given: dict[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    texts = given.get(name)
    if texts is None:
        return default
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, list):
        raise UsageError(f"{name} must be text or a list of texts, got {texts!r}")
    found = cast("list[Any]", listed)
    if not all(isinstance(text, str) for text in found):
        raise UsageError(f"{name} must be text or a list of texts, got {texts!r}")
    return tuple(found)


def _texts(given: dict[str, Any]) -> dict[str, str]:
    found: Any = given.get("properties") or {}
    if not isinstance(found, dict):
        raise UsageError(f"properties must be an object, got {found!r}")
    properties = cast("dict[str, Any]", found)
    wrong = [name for name, value in properties.items() if not isinstance(value, str)]
    if wrong:
        raise UsageError(f"property {wrong[0]} must be text, got {properties[wrong[0]]!r}")
    return properties


def load(count: int, size: int, template: Template) -> "Iterator[Message]":
    """Numbered messages of equal size."""
    width = len(str(max(count - 1, 0)))
    if size < width:
        raise UsageError(
            f"--size {size} is too small for {count} distinct messages; use at least {width}"
        )
    filler = b"." * (size - width)
    for number in range(count):
        yield template.message(b"%0*d" % (width, number) + filler)
