"""What the parts of one consumer share, and how they wait."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tianzhou.client.consume.offset_files import lasting_identity
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.options import ClientOptions, checked_group
from tianzhou.client.session.shared_client import SharedClient


class Tasks:
    """Background tasks of one consumer; `on_error` gets the exception of any that fails.

    Owner: the event loop.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._running: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    def fail(self, error: BaseException) -> None:
        """Report an error of the consumer that no task raised."""
        self._on_error(error)

    async def cancel(self) -> None:
        """Cancel all tasks except the calling one, and wait for their end."""
        ending = [task for task in self._running if task is not asyncio.current_task()]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """The group of a consumer, its session, its options and its background tasks.

    `group`, and all topics and queues inside a consumer, have their names on the wire; `names`
    converts those that users see.
    """

    group: str
    shared: SharedClient
    options: ConsumerOptions
    tasks: Tasks
    names: Namespace = Namespace()

    @classmethod
    def join(
        cls,
        group: str,
        options: ConsumerOptions,
        client: ClientOptions,
        on_error: Callable[[BaseException], None],
        *,
        nameserver: str | None,
    ) -> "ConsumerContext":
        """Join the shared client as a consumer of this group; `leave` leaves it. Raises
        UsageError."""
        if options.broadcasting:
            client = lasting_identity(client)
        names = Namespace(client.namespace)
        full = checked_group(names.full(group))
        shared = SharedClient.join(nameserver, client, consumer_group=full)
        return cls(full, shared, options, Tasks(on_error), names)

    async def leave(self) -> None:
        await self.shared.leave(consumer_group=self.group)


async def wait_for_room(assigned: AssignedQueue) -> None:
    """Wait until the window of a queue is no longer full."""
    while not assigned.has_room:
        waiter, assigned.on_room = _waiter()
        await waiter


async def wait_until_idle(assigned: AssignedQueue) -> None:
    """Wait until no message of a queue is in flight."""
    while assigned.in_flight:
        waiter, assigned.on_idle = _waiter()
        await waiter


def _waiter() -> "tuple[asyncio.Future[None], Callable[[], None]]":
    """Return a future and the callback that sets it."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():  # the task that waits may have been cancelled
            waiter.set_result(None)

    return waiter, wake
