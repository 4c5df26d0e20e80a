"""The blocking admin client: the same nouns and methods as `tianzhou.client.Admin`.

    with Admin(nameserver="10.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
        print(admin.offsets.progress("billing").lag)

Every method calls the one of `tianzhou.client.aio.admin` and waits for it.
"""

import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from tianzhou.client.aio import admin as aio
from tianzhou.client.aio import (
    admin_brokers,
    admin_dead_letters,
    admin_groups,
    admin_messages,
    admin_offsets,
    admin_timers,
    admin_topics,
    admin_transactions,
    admin_views,
)
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import runner

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULTS: Final = ClientOptions()


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a blocking version of a coroutine method."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return runner().run(method(*args, **kwargs))

    return call


class Brokers:
    def __init__(self, inner: admin_brokers.Brokers) -> None:
        self.all = blocking(inner.all)
        self.missing = blocking(inner.missing)
        self.forget = blocking(inner.forget)
        self.status = blocking(inner.status)
        self.statuses = blocking(inner.statuses)
        self.statistic = blocking(inner.statistic)
        self.producers = blocking(inner.producers)
        self.config = blocking(inner.config)
        self.configure = blocking(inner.configure)
        self.acknowledge = blocking(inner.acknowledge)
        self.stop_writes = blocking(inner.stop_writes)
        self.allow_writes = blocking(inner.allow_writes)
        self.traffic = blocking(inner.traffic)


class Topics:
    def __init__(self, inner: admin_topics.Topics) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.create = blocking(inner.create)
        self.update = blocking(inner.update)
        self.shrink = blocking(inner.shrink)
        self.delete = blocking(inner.delete)


class Groups:
    def __init__(self, inner: admin_groups.Groups) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.create = blocking(inner.create)
        self.update = blocking(inner.update)
        self.delete = blocking(inner.delete)
        self.consumers = blocking(inner.consumers)
        self.producers = blocking(inner.producers)
        self.running = blocking(inner.running)


class Offsets:
    def __init__(self, inner: admin_offsets.Offsets) -> None:
        self.progress = blocking(inner.progress)
        self.owners = blocking(inner.owners)
        self.reset_to_time = blocking(inner.reset_to_time)
        self.reset_to_offset = blocking(inner.reset_to_offset)
        self.clone = blocking(inner.clone)
        self.committed = blocking(inner.committed)
        self.by_time = blocking(inner.by_time)
        self.bounds = blocking(inner.bounds)


class Messages:
    def __init__(self, inner: admin_messages.Messages) -> None:
        self.by_id = blocking(inner.by_id)
        self.by_unique_id = blocking(inner.by_unique_id)
        self.by_key = blocking(inner.by_key)
        self.between = blocking(inner.between)
        self.at = blocking(inner.at)
        self.trace = blocking(inner.trace)


class DeadLetterBox:
    def __init__(self, inner: admin_dead_letters.DeadLetterBox) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.peek = blocking(inner.peek)
        self.replay = blocking(inner.replay)
        self.send_again = blocking(inner.send_again)


class Views:
    def __init__(self, inner: admin_views.Views) -> None:
        self.brokers = blocking(inner.brokers)
        self.cluster = blocking(inner.cluster)
        self.broker = blocking(inner.broker)
        self.topics = blocking(inner.topics)
        self.groups = blocking(inner.groups)
        self.topic = blocking(inner.topic)
        self.group = blocking(inner.group)
        self.messages = blocking(inner.messages)
        self.timers = blocking(inner.timers)
        self.transactions = blocking(inner.transactions)
        self.parked = blocking(inner.parked)


class Transactions:
    def __init__(self, inner: admin_transactions.Transactions) -> None:
        self.all = blocking(inner.all)
        self.parked = blocking(inner.parked)
        self.commit = blocking(inner.commit)
        self.rollback = blocking(inner.rollback)
        self.recheck = blocking(inner.recheck)
        self.resume = blocking(inner.resume)


class Timers:
    def __init__(self, inner: admin_timers.Timers) -> None:
        self.all = blocking(inner.all)
        self.cancel = blocking(inner.cancel)
        self.delayed = blocking(inner.delayed)


class Admin:
    """Inspect and change a cluster, from any thread. Use it in a `with` block.

    with Admin(nameserver="10.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
    """

    def __init__(self, *, nameserver: str | None = None, client: ClientOptions = _DEFAULTS) -> None:
        self._inner = aio.Admin(nameserver=nameserver, client=client)

    def __repr__(self) -> str:
        return repr(self._inner)

    def start(self) -> Self:
        inner = runner().run(self._inner.start())
        self.brokers = Brokers(inner.brokers)
        self.topics = Topics(inner.topics)
        self.groups = Groups(inner.groups)
        self.offsets = Offsets(inner.offsets)
        self.messages = Messages(inner.messages)
        self.dead_letters = DeadLetterBox(inner.dead_letters)
        self.views = Views(inner.views)
        self.transactions = Transactions(inner.transactions)
        self.timers = Timers(inner.timers)
        self.leave_out = inner.leave_out
        return self

    def close(self) -> None:
        """Disconnect. A second call has no effect."""
        runner().run(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
