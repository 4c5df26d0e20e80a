"""Traces of what a producer does."""

from typing import Final, Protocol, Self

from tianzhou.client.aio.tracing import Tracer
from tianzhou.client.aio.transaction import TransactionState
from tianzhou.client.core.sending import SendResult
from tianzhou.client.core.trace import MessageType, Published, Recalled, TransactionEnded
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import Message, MessageView

_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class Untraced(Protocol):
    """The producer that traces are sent with."""

    async def start(self) -> Self: ...
    async def send(self, message: Message) -> SendResult: ...
    async def close(self) -> None: ...


class SendTrace:
    """Owner: the event loop."""

    def __init__(self, group: str, topic: str, producer: Untraced) -> None:
        self._group = group
        self._topic = topic
        self._producer = producer

    async def start(self) -> Self:
        await self._producer.start()
        self._tracer = Tracer(self._topic, self._producer.send)
        return self

    def sent(
        self, message: Message, message_id: str, result: SendResult | None,
        begun_ms: int, now_ms: int, *, is_half: bool = False,
    ) -> None:  # fmt: skip
        if message.topic == self._topic or (result is not None and not result.is_traced):
            return
        self._tracer.add(
            Published(
                timestamp_ms=begun_ms,
                region_id=result.region_id if result else "",
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=_host_of(result),
                body_length=len(message.body),
                cost_ms=now_ms - begun_ms,
                message_type=_type_of(message, is_half=is_half),
                offset_id=result.offset_id if result else "",
                is_success=result is not None,
            )
        )

    def transaction_ended(
        self, message: Message, half: SendResult, state: TransactionState, now_ms: int
    ) -> None:
        self._tracer.add(
            TransactionEnded(
                timestamp_ms=now_ms,
                region_id=half.region_id,
                group=self._group,
                topic=message.topic,
                message_id=half.message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=_host_of(half),
                transaction_id=half.transaction_id or half.message_id,
                state=_STATES[state],
            )
        )

    def transaction_checked(
        self, message: MessageView, state: TransactionState, now_ms: int
    ) -> None:
        self._tracer.add(
            TransactionEnded(
                timestamp_ms=now_ms,
                region_id=message.properties.get("MSG_REGION", ""),
                group=self._group,
                topic=message.topic,
                message_id=message.message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host="{}:{}".format(*message.store_host),
                transaction_id=message.message_id,
                state=_STATES[state],
                from_check=True,
            )
        )

    def recalled(self, topic: str, message_id: str, now_ms: int) -> None:
        self._tracer.add(
            Recalled(timestamp_ms=now_ms, group=self._group, topic=topic, message_id=message_id)
        )

    async def close(self) -> None:
        await self._tracer.close()
        await self._producer.close()


def _host_of(result: SendResult | None) -> str:
    return "{}:{}".format(*decode_offset_id(result.offset_id).host) if result else ""


def _type_of(message: Message, *, is_half: bool) -> MessageType:
    if is_half:
        return MessageType.TRANSACTION_HALF
    if message.is_delayed:
        return MessageType.DELAY
    return MessageType.ORDER if message.sharding_key is not None else MessageType.NORMAL
