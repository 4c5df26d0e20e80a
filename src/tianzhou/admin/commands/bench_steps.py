"""The steps of `tianzhou bench`: one event loop, one producer, one reader."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from tianzhou.admin.commands.bars import Tell, progress_bar
from tianzhou.admin.commands.failures import Failure
from tianzhou.wire.names import TOOLS_GROUP

if TYPE_CHECKING:
    from tianzhou.client.aio.producer import Producer
    from tianzhou.client.core.send_request import SendResult
    from tianzhou.record.message import Message

GROUP: Final = "TIANZHOU_BENCH"
READER: Final = TOOLS_GROUP
SINGLE_MAX: Final = 1_000
"""The number of sequential sends, which measure the latency of one."""
BATCH_MAX: Final = 200
BATCH_BYTES_MAX: Final = 2 << 20
"""Well below the 4 MiB that a broker accepts."""
PULL_COUNT: Final = 1_024
TELL_EVERY: Final = 100
TURN_S: Final = 20.0
"""Reading fails after this long without a message."""


@dataclass(frozen=True, slots=True)
class Load:
    topic: str
    count: int
    """Messages in each step."""
    size: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Step:
    """The results of one step. Latencies are per request."""

    step: str
    messages: int
    seconds: float
    times_ms: Sequence[float]

    def facts(self, size: int) -> dict[str, object]:
        rate = self.messages / self.seconds
        return {
            "step": self.step,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "per_second": round(rate),
            "mb_per_second": round(rate * size / 1e6, 1),
            "ms_p50": round(_share(self.times_ms, 0.50), 3),
            "ms_p99": round(_share(self.times_ms, 0.99), 3),
        }


def _share(times_ms: Sequence[float], share: float) -> float:
    ascending = sorted(times_ms)
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


async def measure(nameserver: str, load: Load) -> list[Step]:
    """Send in three ways, then read everything."""
    from tianzhou.client.aio.producer import Producer
    from tianzhou.record.message import Message

    message = Message(load.topic, b"." * load.size)
    async with Producer(GROUP, nameserver=nameserver) as producer:
        warm = await producer.send(message)  # the route and the connection exist from now on
        single = min(load.count, SINGLE_MAX)
        steps = [
            await _sends("send, one at a time", producer, message, count=single, at_once=1),
            await _sends(
                f"send, {load.in_flight} in flight",
                producer,
                message,
                count=load.count,
                at_once=load.in_flight,
            ),
            await _batches(producer, message, load),
        ]
    return [*steps, await _read(nameserver, warm, sum(step.messages for step in steps))]


async def _sends(
    step: str, producer: "Producer", message: "Message", *, count: int, at_once: int
) -> Step:
    import asyncio

    times_ms: list[float] = []
    todo = iter(range(count))

    async def send(tell: Tell) -> None:
        for _ in todo:
            begun_s = perf_counter()
            await producer.send(message)
            times_ms.append((perf_counter() - begun_s) * 1000)
            if not len(times_ms) % TELL_EVERY:
                tell(len(times_ms))

    begun_s = monotonic()
    with progress_bar(count, step) as tell:
        await asyncio.gather(*(send(tell) for _ in range(min(at_once, count))))
    return Step(step, count, monotonic() - begun_s, times_ms)


async def _batches(producer: "Producer", message: "Message", load: Load) -> Step:
    size = max(1, min(BATCH_MAX, BATCH_BYTES_MAX // load.size, load.count))
    step = f"send, batches of {size}"
    times_ms: list[float] = []
    begun_s = monotonic()
    with progress_bar(load.count, step) as tell:
        for done in range(0, load.count, size):
            batch_s = perf_counter()
            await producer.send_batch([message] * min(size, load.count - done))
            times_ms.append((perf_counter() - batch_s) * 1000)
            tell(done)
    return Step(step, load.count, monotonic() - begun_s, times_ms)


async def _read(nameserver: str, warm: "SendResult", count: int) -> Step:
    """Read all messages of the topic except the warm-up message, which no step counts."""
    from tianzhou.client.aio.pull_consumer import PullConsumer

    seen, times_ms = 0, list[float]()
    begun_s = heard_s = monotonic()
    with progress_bar(count, "read") as tell:
        async with PullConsumer(READER, nameserver=nameserver) as consumer:
            at = dict.fromkeys(await consumer.queues(warm.queue.topic), 0)
            at[warm.queue] = warm.queue_offset + 1
            while seen < count:
                for queue, offset in at.items():
                    pull_s = perf_counter()
                    found = await consumer.pull(queue, offset, count_max=PULL_COUNT)
                    if found.messages:
                        times_ms.append((perf_counter() - pull_s) * 1000)
                        seen, heard_s = seen + len(found.messages), monotonic()
                    at[queue] = found.next_offset
                tell(seen)
                if monotonic() - heard_s > TURN_S:
                    raise Failure(
                        f"read only {seen} of {count} messages; none arrived for {TURN_S:.0f} s"
                    )
    return Step("read, one pull at a time", count, monotonic() - begun_s, times_ms)
