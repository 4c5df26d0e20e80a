"""The same clients for code that blocks, under the same names.

from tianzhou.client.sync import Message, Producer

with Producer("orders", nameserver="10.0.0.1:9876") as producer:
    producer.send(Message("paid", b"..."))
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tianzhou.client.sync.admin import Admin as Admin
    from tianzhou.client.sync.lite_pull import LitePullConsumer as LitePullConsumer
    from tianzhou.client.sync.producer import Producer as Producer
    from tianzhou.client.sync.producer import Transaction as Transaction
    from tianzhou.client.sync.pull_consumer import PullConsumer as PullConsumer
    from tianzhou.client.sync.push_consumer import PushConsumer as PushConsumer
    from tianzhou.record.message import Message as Message
    from tianzhou.record.message import MessageView as MessageView

_PLACES = {
    "Admin": "tianzhou.client.sync.admin",
    "LitePullConsumer": "tianzhou.client.sync.lite_pull",
    "Message": "tianzhou.record.message",
    "MessageView": "tianzhou.record.message",
    "Producer": "tianzhou.client.sync.producer",
    "PullConsumer": "tianzhou.client.sync.pull_consumer",
    "PushConsumer": "tianzhou.client.sync.push_consumer",
    "Transaction": "tianzhou.client.sync.producer",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
