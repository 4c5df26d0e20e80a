"""The load of a scenario: producers and consumers of the Python client, in their own loop, and
optionally other clients."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from tianzhou.base.errors import TianzhouError
from tianzhou.testing.chaos.cluster import PAUSE_S, QUEUES, TOPIC, Cluster, wait_for
from tianzhou.testing.chaos.consuming import GROUPS, Following, Membership, OffsetWatch
from tianzhou.testing.chaos.history import History
from tianzhou.testing.chaos.producing import Deferring, Pace, Producing
from tianzhou.testing.kit.loop_thread import LoopThread
from tianzhou.testing.kit.patience import Patience


class Foreign(Protocol):
    """Other clients. They record what they did when they have stopped."""

    group: str | None
    """The group of its consumers, if it has any."""

    def stop_producing(self) -> None: ...
    def received(self) -> set[str]: ...
    def stop(self) -> None: ...


Foreigners = Callable[[Cluster, History], Foreign]
"""A function that starts other clients."""


class Together:
    """Combines several other clients; at most one of them has consumers."""

    def __init__(self, parts: Sequence[Foreign]) -> None:
        self._parts = parts
        groups = [part.group for part in parts if part.group]
        assert len(groups) <= 1, f"deliveries to {groups} would be mixed up"
        self.group = groups[0] if groups else None

    def stop_producing(self) -> None:
        for part in self._parts:
            part.stop_producing()

    def received(self) -> set[str]:
        return {value for part in self._parts for value in part.received()}

    def stop(self) -> None:
        with contextlib.ExitStack() as ending:  # even if one of them fails, the others stop
            for part in reversed(self._parts):
                ending.callback(part.stop)


def together(*starts: Foreigners) -> Foreigners:
    """Combine start functions. If one fails, those that have started are stopped."""

    def start(cluster: Cluster, history: History) -> Foreign:
        parts: list[Foreign] = []
        with contextlib.ExitStack() as failing:
            for foreigners in starts:
                parts.append(foreigners(cluster, history))
                failing.callback(parts[-1].stop)
            failing.pop_all()
        return Together(parts)

    return start


class Load:
    """The running load, from creation to `finish` or `close`. Owner: a scenario."""

    def __init__(
        self, cluster: Cluster, history: History, pace: Pace, foreigners: Foreigners | None
    ) -> None:
        self._history = history
        self._loop = LoopThread("chaos-load")
        where = (history, cluster.nameserver, TOPIC)
        self._producing, self._following = Producing(*where, pace), Following(*where)
        self._deferring = self._loop.call(Deferring, *where)
        self._membership = self._loop.call(Membership, *where)
        self._loop.run(self._membership.start())
        self._tasks = self._loop.call(self._begin)
        self._watch = OffsetWatch(history, cluster.brokers, TOPIC, QUEUES)
        self._foreign = foreigners(cluster, history) if foreigners else None

    def _begin(self) -> "list[asyncio.Task[None]]":
        loop = asyncio.get_running_loop()
        return [
            loop.create_task(part.run())
            for part in (self._following, self._producing, self._deferring)
        ]

    @property
    def groups(self) -> tuple[str, ...]:
        """The consumer groups that must get every message."""
        foreign = self._foreign.group if self._foreign else None
        return (*GROUPS, foreign) if foreign else GROUPS

    def wait_acknowledged(self, count: int, within_s: float) -> None:
        """Wait until `count` more sends are acknowledged."""
        wanted = self._history.acknowledged() + count

        def described() -> str:
            last = self._history.sends[-1] if self._history.sends else "nothing was sent"
            return f"{self._history.acknowledged()} of {wanted} are acknowledged; last: {last}"

        wait_for(
            lambda: self._is_well() and self._history.acknowledged() >= wanted, within_s, described
        )

    def _is_well(self) -> bool:
        """Raise the error of a part of the load that has ended early."""
        for task in self._tasks:
            if task.done() and not self._producing.is_over:
                task.result()
        return True

    def stop_producing(self) -> None:
        self._producing.is_over = True
        self._loop.run(_finished(self._tasks[1]))
        self._loop.run(self._deferring.quiet())
        if self._foreign is not None:
            self._foreign.stop_producing()

    def missing(self, values: Collection[str], within_s: float) -> list[str]:
        """Wait until every group has received all values. After the timeout, return how many each
        group lacks; the rules report which."""
        patience = Patience(within_s)
        while True:
            is_over = patience.is_over()
            self._is_well()
            lacking = {group: len(set(values) - self._received(group)) for group in self.groups}
            said = [
                f"after {within_s} s {group} lacks {count} of {len(values)} messages"
                for group, count in lacking.items()
                if count
            ]
            if is_over or not said:
                return said
            time.sleep(PAUSE_S)

    def _received(self, group: str) -> set[str]:
        if self._foreign is not None and group == self._foreign.group:
            return self._foreign.received()
        return self._history.values_of(group)

    def finish(self) -> None:
        """Stop the consumers, which commit their offsets."""
        self._loop.run(self._membership.stop())
        self._following.is_over = True
        self._loop.call(self._deferring.leave)
        for part in (0, 2):
            self._loop.run(_finished(self._tasks[part]))
        if self._foreign is not None:
            self._foreign.stop()

    def close(self) -> None:
        """Stop everything, even after a failure. After `finish` little is left to do."""
        self._watch.stop()
        if self._foreign is not None:
            self._foreign.stop()
        self._producing.is_over = self._following.is_over = True
        self._loop.call(self._deferring.leave)
        with contextlib.suppress(TianzhouError, TimeoutError):  # the failure is reported elsewhere
            self._loop.run(self._membership.stop())
        self._loop.close()
        assert not self._loop.errors, f"unreported errors: {self._loop.errors}"


async def _finished(task: "asyncio.Task[None]") -> None:
    await task
