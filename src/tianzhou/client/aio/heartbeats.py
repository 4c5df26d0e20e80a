"""Heartbeats: the producers and consumers of this process, as brokers see them."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.net.rpc import Request
from tianzhou.record.message import MessageView
from tianzhou.record.names import PRODUCER_GROUP
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.heartbeat import ConsumerData, HeartbeatData, ProducerData

Describe = Callable[[], ConsumerData]
"""Returns the subscriptions of a consumer at the time of a heartbeat."""

_GROUP_FIELDS: Final[dict[int, str]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


def group_of(request: Request) -> str | None:
    """Return the group that a broker's request names; None if it names none. Raises
    RecordDamaged."""
    code = request.header.code
    if code == RequestCode.CHECK_TRANSACTION_STATE:
        return MessageView(request.body).properties.get(PRODUCER_GROUP.decode())
    return request.header.ext.get(_GROUP_FIELDS.get(code, ""))


class Heartbeats:
    """The producers and consumers that heartbeats announce.

    Owner: the event loop.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, Describe] = {}

    def __bool__(self) -> bool:
        return bool(self._producers or self._consumers)

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    def add_producer(self, group: str) -> None:
        """Add a producer; brokers see several producers of a group as one."""
        self._producers[group] += 1

    def add_consumer(self, group: str, describe: Describe) -> None:
        if group in self._consumers:
            raise UsageError(
                f"this client already has a consumer of group {group!r}: join with"
                " consumer_group, which makes another client for it"
            )
        self._consumers[group] = describe

    def remove_producer(self, group: str) -> bool:
        """Remove a producer; return whether it was the last of its group."""
        self._producers[group] -= 1
        if self._producers[group]:
            return False
        del self._producers[group]
        return True

    def remove_consumer(self, group: str) -> None:
        self._consumers.pop(group, None)

    def heartbeat(self) -> bytes:
        return encode(
            HeartbeatData(
                client_id=self._client_id,
                producer_data_set=tuple(ProducerData(group_name=name) for name in self._producers),
                consumer_data_set=tuple(describe() for describe in self._consumers.values()),
            )
        )
