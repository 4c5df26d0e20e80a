"""Namespaces: one cluster for several tenants, whose topics and groups have a prefix on the wire.

    orders            ns%orders
    %RETRY%stock      %RETRY%ns%stock
    %DLQ%stock        %DLQ%ns%stock

Users of a client with a namespace see the names on the left; requests, brokers and tools have those
on the right. The rules are the Java client's: names of the system have no namespace, and a name
that has it already stays as it is. Unlike in Java, the topic of replies and light queues, which a
message names in a property, have no namespace: with one, neither would be found.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.client.core.routing import Selector
from tianzhou.client.core.send_request import SendResult
from tianzhou.record.light_queues import is_light
from tianzhou.record.message import Message, MessageView
from tianzhou.record.names import checked_topic
from tianzhou.wire import names
from tianzhou.wire.queues import MessageQueue

SEPARATOR: Final = "%"
_NAME: Final = re.compile(r"[A-Za-z0-9_|-]+")
_SYSTEM_TOPICS: Final = frozenset(
    (
        names.DEFAULT_TOPIC,
        names.SCHEDULE_TOPIC,
        names.SELF_TEST_TOPIC,
        names.BENCHMARK_TOPIC,
        names.OFFSET_MOVED_TOPIC,
        names.TRACE_TOPIC,
        names.HALF_TOPIC,
        names.OP_TOPIC,
        names.CHECKED_OUT_TOPIC,
    )
)
_SYSTEM_PREFIXES: Final = (names.SYSTEM_PREFIX, names.SYSTEM_GROUP_PREFIX)
_KINDS: Final = (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX)

Queue = TypeVar("Queue")
"""A queue, or what a user passed instead, which is reported elsewhere."""


def checked_namespace(name: str) -> str:
    """Return the namespace if it is valid; an empty one means that there is none. Raises
    UsageError."""
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"invalid namespace {name!r}; use letters, digits and | _ -")
    return name


@dataclass(frozen=True, slots=True)
class Namespace:
    """Adds a namespace to names on their way to the servers, and removes it on their way back.

    Without a name, every name stays as it is.
    """

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def full(self, name: str) -> str:
        """Return the name of a topic or group on the wire."""
        if not self.name or _is_system(name):
            return name
        kind, rest = _parts(name)
        prefix = self.name + SEPARATOR
        return name if rest.startswith(prefix) else kind + prefix + rest

    def plain(self, name: str) -> str:
        """Return the name of a topic or group as users see it."""
        if not self.name:
            return name
        kind, rest = _parts(name)
        return kind + rest.removeprefix(self.name + SEPARATOR)

    def full_queue(self, queue: Queue) -> Queue:
        """Return the queue with its topic on the wire; anything else is returned unchanged."""
        return self._with_topic(queue, self.full)

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        return self._with_topic(queue, self.plain)

    def plain_queues(self, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        return tuple(map(self.plain_queue, queues))

    def full_offsets(
        self, offsets: Mapping[MessageQueue, int] | None
    ) -> Mapping[MessageQueue, int] | None:
        """Return offsets by queue, with the names of the queues on the wire."""
        if not self.name or offsets is None:
            return offsets
        return {self.full_queue(queue): offset for queue, offset in offsets.items()}

    def _with_topic(self, queue: Queue, convert: Callable[[str], str]) -> Queue:
        if not self.name or not isinstance(queue, MessageQueue):
            return queue
        return msgspec.structs.replace(queue, topic=convert(queue.topic))

    def full_message(self, message: Message) -> Message:
        """Return the message with its topic on the wire. Raises UsageError if that is too long."""
        return self._with_name(message, checked_topic(self.full(message.topic)))

    def _with_name(self, message: Message, topic: str) -> Message:
        if topic == message.topic:
            return message
        # Everything else was checked when the message was created, and it is frozen.
        other = copy.copy(message)
        object.__setattr__(other, "topic", topic)
        return other

    def full_result(self, result: SendResult) -> SendResult:
        return msgspec.structs.replace(result, queue=self.full_queue(result.queue))

    def plain_result(self, result: SendResult) -> SendResult:
        """Return the result of a send with the queue as users see it."""
        return msgspec.structs.replace(result, queue=self.plain_queue(result.queue))

    def full_selector(self, select: Selector | None) -> Selector | None:
        """Return a selector for queues on the wire, which shows the user's one plain names."""
        if not self.name or not callable(select):
            return select

        def selected(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            shown = self._with_name(message, self.plain(message.topic))
            return self.full_queue(select(self.plain_queues(queues), shown))

        return selected

    def view(self, buffer: bytes) -> MessageView:
        """Return a message of a broker as users see it."""
        return _NamespacedView(buffer) if self.name else MessageView(buffer)


def without_namespace(name: str) -> str:
    """Return a name without its namespace, whichever it is."""
    kind, rest = _parts(name)
    namespace, separator, last = rest.partition(SEPARATOR)
    return kind + last if namespace and separator else name


class _NamespacedView(MessageView):
    """A message of a client with a namespace, which its topic does not show."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return without_namespace(super().topic)


def _parts(name: str) -> tuple[str, str]:
    """Split the prefix of retry and dead letter topics from a name."""
    kind = next((kind for kind in _KINDS if name.startswith(kind)), "")
    return kind, name[len(kind) :]


def _is_system(name: str) -> bool:
    return (
        name in _SYSTEM_TOPICS
        or name.startswith(_SYSTEM_PREFIXES)
        or name.endswith(names.REPLY_TOPIC_SUFFIX)
        or is_light(name)
    )
