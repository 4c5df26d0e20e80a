"""What the sends of a producer wait for: capacity, a route or a connection, a reply.

Any number of sends wait for one route or connection with one task and one timer:

    waits = SharedWaits(connect)              # `connect(address)` is a coroutine
    waits.add(address, deadline_s, on_end)    # `on_end(None)` once the coroutine has returned

A task and a timeout for each send would cost a burst more than the sends themselves, and a future
that thousands of tasks wait for removes a waiter that times out in linear time.
"""

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from heapq import heappop, heappush

from tianzhou.base.errors import UsageError
from tianzhou.client.core.replying import Reply, reply_of, request_properties
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.errors import ClientClosed, RequestTimeout, TooManyInFlight
from tianzhou.client.options import checked_timeout
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.net import rpc as exchange
from tianzhou.net.rpc import Request
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import PushReplyRequest

# Capacity


class Generation:
    """The sends that began between two calls of `drained`."""

    __slots__ = ("count", "drained")

    def __init__(self) -> None:
        self.count = 0
        self.drained = asyncio.Event()


class InFlightLimiter:
    """Count the sends in flight, and make callers wait while there are too many.

    Owner: the event loop.
    Invariant: count == 0 exactly when no send waits for a response, and then size == 0: a single
    message is always allowed, however large it is
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size = 0
        self.is_full = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._generation = Generation()
        self._earlier: list[Generation] = []
        """Generations that a caller of `drained` waits for."""

    def acquire(self, size: int) -> Generation:
        """Count one more send; pass the result to `release`. Raises TooManyInFlight."""
        if self.is_full:
            raise TooManyInFlight(
                f"{self.count} sends with {self.size} bytes are in flight; the limit is"
                f" {self._count_max} sends or {self._bytes_max} bytes; await some of them first"
            )
        self.count += 1
        self.size += size
        self.is_full = self.count >= self._count_max or self.size >= self._bytes_max
        self._generation.count += 1
        if self._waiting:
            self._wake()  # a large send that ended may have freed capacity for several
        return self._generation

    def release(self, size: int, generation: Generation) -> None:
        self.count -= 1
        self.size -= size
        self.is_full = self.count >= self._count_max or self.size >= self._bytes_max
        generation.count -= 1
        if not generation.count and generation is not self._generation:
            self._earlier.remove(generation)
            generation.drained.set()
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Wake the next waiter, if there is capacity for it."""
        while self._waiting and not self.is_full:
            waiting = self._waiting.popleft()
            if not waiting.done():  # a cancelled waiter is skipped
                waiting.set_result(None)
                return

    async def wait_for_capacity(self) -> None:
        """Wait until one more send is allowed."""
        while self.is_full:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                # This waiter may have been cancelled after being woken; pass the wake-up on.
                self._wake()
                raise

    def release_waiters(self) -> None:
        """Wake every waiter, because no send will end any more and wake it."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    async def drained(self) -> None:
        """Wait for the sends that are in flight now; others may begin meanwhile."""
        if self._generation.count:
            self._earlier.append(self._generation)
            self._generation = Generation()
        for generation in tuple(self._earlier):
            await generation.drained.wait()


# A route or a connection

OnEnd = Callable[[BaseException | None], None]
"""Gets None when the wait succeeded, DeadlinePassed at the waiter's deadline, or the error."""


class DeadlinePassed(Exception):
    """A waiter's deadline passed before what it waits for happened."""


class SharedWait:
    """Callbacks that wait for the same event, in order of arrival, each with a deadline.

    Owner: the event loop. `on_abandoned` is called when the last waiter's deadline has passed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_abandoned: Callable[[], None]) -> None:
        self._loop = loop
        self._on_abandoned = on_abandoned
        self._waiting: dict[int, OnEnd] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap of deadlines, each with the waiter's key in `_waiting`."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def add(self, deadline_s: float, on_end: OnEnd) -> None:
        number = self._count
        self._count = number + 1
        self._waiting[number] = on_end
        heappush(self._deadlines, (deadline_s, number))
        if deadline_s < self._timer_at:
            self._set_timer(deadline_s)

    def end(self, error: BaseException | None) -> None:
        """Call every waiter back, the earliest first."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._deadlines = self._waiting, {}, []
        for on_end in waiting.values():
            on_end(error)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at_s
        self._timer = self._loop.call_at(at_s, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now_s, deadlines, late = self._loop.time(), self._deadlines, list[OnEnd]()
        while deadlines and deadlines[0][0] <= now_s:
            late.append(self._waiting.pop(heappop(deadlines)[1]))
        if deadlines:
            self._set_timer(deadlines[0][0])
        else:
            self._on_abandoned()
        for on_end in late:
            on_end(DeadlinePassed())


class SharedWaits:
    """One shared wait for each key (a topic or an address). Owner: the event loop.

    `event` is a coroutine function; the first waiter of a key starts it. It is cancelled when no
    waiter is left.
    """

    def __init__(self, event: Callable[[str], Coroutine[None, None, object]]) -> None:
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._waits: dict[str, tuple[SharedWait, asyncio.Task[object]]] = {}
        self.keys = self._waits.keys()
        """The keys that sends wait for; it changes with them."""

    def add(self, key: str, deadline_s: float, on_end: OnEnd) -> None:
        """Call `on_end` once: later, never from within this call."""
        found = self._waits.get(key)
        if found is None:
            wait = SharedWait(self._loop, partial(self._abandon, key))
            task = self._loop.create_task(self._event(key))
            self._waits[key] = found = wait, task
            task.add_done_callback(partial(self._ended, key, wait))
        found[0].add(deadline_s, on_end)

    def close(self) -> None:
        """End every wait with ClientClosed."""
        for _, task in tuple(self._waits.values()):
            task.cancel()

    def _abandon(self, key: str) -> None:
        _, task = self._waits.pop(key)
        task.cancel()

    def _ended(self, key: str, wait: SharedWait, task: "asyncio.Task[object]") -> None:
        # First the table: a waiter that is called back may have to wait for the key again.
        if key in self._waits and self._waits[key][1] is task:
            del self._waits[key]
        if task.cancelled():
            wait.end(ClientClosed("the producer was closed before the message was sent"))
        else:
            wait.end(task.exception())


# A reply

SendRequestMessage = Callable[[dict[bytes, str]], Awaitable[SendResult]]
"""Sends the message of a request, with these properties."""


class PendingReplies:
    """The requests of one producer that wait for a reply, by correlation id.

    Owner: the event loop.
    """

    def __init__(self, shared: SharedClient) -> None:
        self._loop = asyncio.get_running_loop()
        self._client_id = shared.client_id
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._stop = shared.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)

    async def request(self, send: SendRequestMessage, timeout_s: float) -> Reply:
        """Send a request and wait for its reply. Raises RequestTimeout, UsageError for an invalid
        timeout, and what `send` raises."""
        checked_timeout(timeout_s)
        if timeout_s == math.inf:
            raise UsageError("timeout_s must be finite: requests carry it in milliseconds")
        deadline_s = self._loop.time() + timeout_s
        correlation_id = str(uuid.uuid4())
        waiting = self._waiting[correlation_id] = self._loop.create_future()
        added = request_properties(self._client_id, correlation_id, round(timeout_s * 1000))
        try:
            sent = await send(added)
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await waiting
            except TimeoutError:
                raise RequestTimeout(
                    f"no consumer replied to message {sent.message_id} of topic"
                    f" {sent.queue.topic!r} within {timeout_s:.3g} s; it was stored at"
                    f" {sent.queue.broker_name}"
                ) from None
        finally:
            self._waiting.pop(correlation_id, None)

    def _pushed(self, request: Request) -> exchange.Reply | None:
        pushed = PushReplyRequest.from_ext(request.header.ext)
        correlation_id, reply = reply_of(pushed, request.body)
        waiting = self._waiting.get(correlation_id or "")
        if waiting is None:
            # Another producer of this client may wait for it. If none does, the consumer that
            # replied gets an error.
            return None
        if not waiting.done():
            waiting.set_result(reply)
        return exchange.Reply(ResponseCode.SUCCESS)

    def close(self) -> None:
        self._stop()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientClosed("the producer was closed while it waited"))
