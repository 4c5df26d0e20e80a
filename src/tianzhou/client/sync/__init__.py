"""The same clients for code that blocks, under the same names.

from tianzhou.client.sync import Message, Producer

with Producer("orders", nameserver="10.0.0.1:9876") as producer:
    producer.send(Message("paid", b"..."))

What does not wait, such as messages, options and results, is the same for both.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tianzhou.client import errors as errors
    from tianzhou.client.aio.pull_consumer import PullResult as PullResult
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
    from tianzhou.client.sync.admin import Admin as Admin
    from tianzhou.client.sync.lite_pull import LitePullConsumer as LitePullConsumer
    from tianzhou.client.sync.producer import Producer as Producer
    from tianzhou.client.sync.producer import Transaction as Transaction
    from tianzhou.client.sync.pull_consumer import PullConsumer as PullConsumer
    from tianzhou.client.sync.push_consumer import PushConsumer as PushConsumer
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
    "Admin": "tianzhou.client.sync.admin",
    "LitePullConsumer": "tianzhou.client.sync.lite_pull",
    "Producer": "tianzhou.client.sync.producer",
    "PullConsumer": "tianzhou.client.sync.pull_consumer",
    "PushConsumer": "tianzhou.client.sync.push_consumer",
    "Transaction": "tianzhou.client.sync.producer",
}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        place = _PLACES.get(name)
        if place is not None:
            return getattr(import_module(place), name)
        if name in __all__:
            return getattr(import_module("tianzhou.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
