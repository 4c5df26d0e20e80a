"""The client library: producers, consumers and administration, on asyncio or blocking.

    from tianzhou.client import Message, Producer

    async with Producer("orders", nameserver="10.0.0.1:9876;10.0.0.2:9876") as producer:
        result = await producer.send(Message("paid", b"...", keys="T1"))

The names here are for asyncio; `tianzhou.client.sync` has the same ones for code that blocks.
Names are loaded when they are first used, so that a program pays only for its own half.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tianzhou.client import errors as errors
    from tianzhou.client.aio.admin import Admin as Admin
    from tianzhou.client.aio.lite_pull import LitePullConsumer as LitePullConsumer
    from tianzhou.client.aio.producer import Producer as Producer
    from tianzhou.client.aio.pull_consumer import PullConsumer as PullConsumer
    from tianzhou.client.aio.pull_consumer import PullResult as PullResult
    from tianzhou.client.aio.push_consumer import PushConsumer as PushConsumer
    from tianzhou.client.aio.transactions import Transaction as Transaction
    from tianzhou.client.consumer_options import ConsumerOptions as ConsumerOptions
    from tianzhou.client.core.assigned_queue import FlowLimits as FlowLimits
    from tianzhou.client.core.offsets import OffsetStore as OffsetStore
    from tianzhou.client.core.offsets import StartPosition as StartPosition
    from tianzhou.client.core.pulling import PullStatus as PullStatus
    from tianzhou.client.core.received import ConsumeResult as ConsumeResult
    from tianzhou.client.core.received import ReceivedMessage as ReceivedMessage
    from tianzhou.client.core.replying import Reply as Reply
    from tianzhou.client.core.routing import FaultAvoidance as FaultAvoidance
    from tianzhou.client.core.routing import QueueChoice as QueueChoice
    from tianzhou.client.core.send_request import Compression as Compression
    from tianzhou.client.core.send_request import SendResult as SendResult
    from tianzhou.client.core.send_request import SendStatus as SendStatus
    from tianzhou.client.core.subscription import Sql92 as Sql92
    from tianzhou.client.core.transaction import TransactionState as TransactionState
    from tianzhou.client.hooks import ConsumeContext as ConsumeContext
    from tianzhou.client.hooks import ConsumeHook as ConsumeHook
    from tianzhou.client.hooks import SendContext as SendContext
    from tianzhou.client.hooks import SendHook as SendHook
    from tianzhou.client.options import Batching as Batching
    from tianzhou.client.options import ClientOptions as ClientOptions
    from tianzhou.client.options import ProducerOptions as ProducerOptions
    from tianzhou.record.message import Message as Message
    from tianzhou.record.message import MessageView as MessageView
    from tianzhou.wire.queues import MessageQueue as MessageQueue
    from tianzhou.wire.signing import Credentials as Credentials

__all__ = [
    "Admin",
    "Batching",
    "ClientOptions",
    "Compression",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumerOptions",
    "Credentials",
    "FaultAvoidance",
    "FlowLimits",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "MessageView",
    "OffsetStore",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueChoice",
    "ReceivedMessage",
    "Reply",
    "SendContext",
    "SendHook",
    "SendResult",
    "SendStatus",
    "Sql92",
    "StartPosition",
    "Transaction",
    "TransactionState",
    "errors",
]

_PLACES = {
    "Admin": "tianzhou.client.aio.admin",
    "Batching": "tianzhou.client.options",
    "ClientOptions": "tianzhou.client.options",
    "Compression": "tianzhou.client.core.send_request",
    "ConsumeContext": "tianzhou.client.hooks",
    "ConsumeHook": "tianzhou.client.hooks",
    "ConsumeResult": "tianzhou.client.core.received",
    "ConsumerOptions": "tianzhou.client.consumer_options",
    "Credentials": "tianzhou.wire.signing",
    "FaultAvoidance": "tianzhou.client.core.routing",
    "FlowLimits": "tianzhou.client.core.assigned_queue",
    "LitePullConsumer": "tianzhou.client.aio.lite_pull",
    "Message": "tianzhou.record.message",
    "MessageQueue": "tianzhou.wire.queues",
    "MessageView": "tianzhou.record.message",
    "OffsetStore": "tianzhou.client.core.offsets",
    "Producer": "tianzhou.client.aio.producer",
    "ProducerOptions": "tianzhou.client.options",
    "PullConsumer": "tianzhou.client.aio.pull_consumer",
    "PullResult": "tianzhou.client.aio.pull_consumer",
    "PullStatus": "tianzhou.client.core.pulling",
    "PushConsumer": "tianzhou.client.aio.push_consumer",
    "QueueChoice": "tianzhou.client.core.routing",
    "ReceivedMessage": "tianzhou.client.core.received",
    "Reply": "tianzhou.client.core.replying",
    "SendContext": "tianzhou.client.hooks",
    "SendHook": "tianzhou.client.hooks",
    "SendResult": "tianzhou.client.core.send_request",
    "SendStatus": "tianzhou.client.core.send_request",
    "Sql92": "tianzhou.client.core.subscription",
    "StartPosition": "tianzhou.client.core.offsets",
    "Transaction": "tianzhou.client.aio.transactions",
    "TransactionState": "tianzhou.client.core.transaction",
}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("tianzhou.client.errors")
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted(__all__)
