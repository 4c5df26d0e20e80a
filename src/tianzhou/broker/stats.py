"""Statistics of the broker: counters and their rates.

Events are counted where they happen, by methods named after them. `tick` samples the counters, and
a rate is the difference of two samples. Time is an argument; nothing here reads a clock.

The windows are RocketMQ's: 10, 60 and 600 seconds for the broker, and a minute, an hour and a day
for each topic and group.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from tianzhou.base.probe import Histogram
from tianzhou.broker.metrics import Series
from tianzhou.record.light_queues import is_light
from tianzhou.store.consume_queue import sizes_of
from tianzhou.store.derive import QueueUnits

SECOND_MS: Final = 1_000
RATE_WINDOWS_S: Final = (10, 60, 600)
FLOWS_MAX: Final = 100_000
"""Topics and pairs of topic and group that are counted separately; about 4 KiB each when busy. More
are only counted in the totals."""

BUCKETS_MS: Final = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Upper ends of the ranges in which durations are counted; one more range is open."""

_Key = TypeVar("_Key", str, tuple[str, str])


class Counts(NamedTuple):
    """Calls, messages and bytes of one flow."""

    calls: int = 0
    messages: int = 0
    size: int = 0


class Growth(NamedTuple):
    """By how much something grew over a time; in RocketMQ's words: sum, tps, avgpt."""

    total: int = 0
    per_second: float = 0.0
    per_call: float = 0.0


class _Series:
    """Samples of counts, at least one step apart, as many as a window has steps."""

    __slots__ = ("_samples", "_step_ms")

    def __init__(self, *, step_ms: int, steps: int) -> None:
        self._step_ms = step_ms
        self._samples: deque[tuple[int, Counts]] = deque(maxlen=steps + 1)

    def sample(self, now_ms: int, counts: Counts) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= self._step_ms:
            self._samples.append((now_ms, counts))

    def since(self, now_ms: int, window_ms: int) -> tuple[int, Counts] | None:
        """The oldest sample in the window."""
        for at_ms, counts in self._samples:
            if now_ms - window_ms <= at_ms < now_ms:
                return at_ms, counts
        return None

    def steps(self, counts: Counts) -> list[int]:
        totals = [kept.messages for _, kept in self._samples]
        return [after - before for before, after in pairwise([*totals, counts.messages])]


class Window(NamedTuple):
    name: str
    step_ms: int
    steps: int

    @property
    def length_ms(self) -> int:
        return self.step_ms * self.steps


MINUTE: Final = Window("minute", 10_000, 6)
HOUR: Final = Window("hour", 600_000, 6)
DAY: Final = Window("day", 3_600_000, 24)


class Flow:
    """Messages in one direction: into a topic, or from a topic to a group."""

    __slots__ = ("_series", "calls", "count", "size")

    def __init__(self, now_ms: int) -> None:
        self.calls = 0
        self.count = 0
        self.size = 0
        self._series = {
            window: _Series(step_ms=window.step_ms, steps=window.steps)
            for window in (MINUTE, HOUR, DAY)
        }
        self.sample(now_ms)

    def add(self, count: int, size: int) -> None:
        self.calls += 1
        self.count += count
        self.size += size

    def counts(self) -> Counts:
        return Counts(self.calls, self.count, self.size)

    def sample(self, now_ms: int) -> None:
        counts = self.counts()
        for series in self._series.values():
            series.sample(now_ms, counts)

    def steps(self, window: Window) -> list[int]:
        """Messages of each step of a window, the oldest first; the last one is not over yet."""
        return self._series[window].steps(self.counts())

    def growth(self, window: Window, now_ms: int, *, of_size: bool = False) -> Growth:
        found = self._series[window].since(now_ms, window.length_ms)
        if found is None:
            return Growth()
        at_ms, before = found
        total = self.size - before.size if of_size else self.count - before.messages
        calls = self.calls - before.calls
        return Growth(total, total * SECOND_MS / (now_ms - at_ms), total / calls if calls else 0.0)


class Durations:
    """How long something took, counted in ranges."""

    __slots__ = ("buckets", "longest_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_MS) + 1)
        self.longest_ms = 0

    def add(self, ms: int, count: int = 1) -> None:
        self.buckets[bisect_left(BUCKETS_MS, ms)] += count
        self.longest_ms = max(self.longest_ms, ms)

    def percentile(self, part: float) -> int:
        """An upper bound for this part of all durations."""
        left = sum(self.buckets) * part
        for count, end in zip(self.buckets, BUCKETS_MS, strict=False):
            left -= count
            if left <= 0:
                return min(end, self.longest_ms)
        return self.longest_ms


class Latency:
    """How long an operation takes: in RocketMQ's ranges, and as a histogram for Prometheus."""

    __slots__ = ("histogram", "ranges")

    def __init__(self) -> None:
        self.ranges = Durations()
        self.histogram = Histogram()

    def add(self, seconds: float, count: int = 1) -> None:
        """Record one operation on `count` messages."""
        self.ranges.add(round(seconds * 1000), count)
        self.histogram.add(seconds)


class Mornings:
    """Messages put and got when today and yesterday began, in local time."""

    __slots__ = ("_day", "today", "yesterday")

    def __init__(self, day: tuple[int, int, int]) -> None:
        self._day = day
        self.yesterday = self.today = (0, 0)

    def update(self, day: tuple[int, int, int], counts: tuple[int, int]) -> None:
        if day != self._day:
            self._day = day
            self.yesterday, self.today = self.today, counts


class Refusals:
    """Rejected requests."""

    __slots__ = ("busy", "by_code")

    def __init__(self) -> None:
        self.by_code: Counter[int] = Counter()
        """By response code."""
        self.busy: Counter[str] = Counter()
        """Sends that were rejected because they would have waited too long, by cause."""


class Stats:
    """Owner: the broker loop."""

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.puts = Flow(now_ms)
        self.gets = Flow(now_ms)
        self.missed_count = 0
        """Pulls that found nothing."""
        self.put_latency = Latency()
        self.get_latency = Latency()
        self.refusals = Refusals()
        self.topic_puts: dict[str, Flow] = {}
        self.group_gets: dict[tuple[str, str], Flow] = {}
        """By topic and group; the next as well."""
        self.group_send_backs: dict[tuple[str, str], Flow] = {}
        self._seconds: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=RATE_WINDOWS_S[-1] + 1)
        self._seconds.append((now_ms, self._numbers()))
        self.mornings = Mornings(_day_of(now_ms))

    @property
    def found_count(self) -> int:
        """Pulls that found messages."""
        return self.gets.calls

    # Events

    def arrived(self, run: QueueUnits) -> None:
        """Count messages that became visible. Those of a light queue are counted already."""
        if is_light(run.queue.topic):
            return
        sizes = sizes_of(run.units)
        self.put(run.queue.topic, len(sizes), sum(sizes))

    def put_took(self, count: int, seconds: float) -> None:
        """Count one append of `count` messages."""
        self.put_latency.add(seconds, count)

    def get_took(self, seconds: float) -> None:
        """Count one read of the store for a pull."""
        self.get_latency.add(seconds)

    def refused(self, code: int, count: int = 1) -> None:
        """Count requests that got an error response."""
        self.refusals.by_code[code] += count

    def put(self, topic: str, count: int, size: int) -> None:
        """Count stored messages."""
        self.puts.add(count, size)
        flow = self.topic_puts.get(topic) or self._watch(self.topic_puts, topic)
        if flow is not None:
            flow.add(count, size)

    def got(self, topic: str, group: str, count: int, size: int) -> None:
        """Count a pull that returned messages."""
        self.gets.add(count, size)
        key = (topic, group)
        flow = self.group_gets.get(key) or self._watch(self.group_gets, key)
        if flow is not None:
            flow.add(count, size)

    def missed(self) -> None:
        """Count a pull that found nothing."""
        self.missed_count += 1

    def sent_back(self, topic: str, group: str, size: int = 0) -> None:
        """Count a message that a consumer sent back for a retry."""
        key = (topic, group)
        flow = self.group_send_backs.get(key) or self._watch(self.group_send_backs, key)
        if flow is not None:
            flow.add(1, size)

    def topic_deleted(self, topic: str) -> None:
        self.topic_puts.pop(topic, None)
        self._forget(lambda key: key[0] == topic)

    def group_deleted(self, group: str) -> None:
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for flows in (self.group_gets, self.group_send_backs):
            for key in [key for key in flows if is_gone(key)]:
                del flows[key]

    def _watch(self, flows: dict[_Key, Flow], key: _Key) -> Flow | None:
        watched = len(self.topic_puts) + len(self.group_gets) + len(self.group_send_backs)
        if watched >= FLOWS_MAX:
            return None
        # Counted from the last tick on, so that the first rate covers more than an instant.
        flow = flows[key] = Flow(self._seconds[-1][0])
        return flow

    # Time

    def tick(self, now_ms: int) -> None:
        """Sample the counters. Call it about once a second."""
        last_ms = self._seconds[-1][0]
        if now_ms - last_ms < SECOND_MS:
            return
        self._seconds.append((now_ms, self._numbers()))
        if now_ms // MINUTE.step_ms != last_ms // MINUTE.step_ms:
            for flow in self._flows():
                flow.sample(now_ms)
        self.mornings.update(_day_of(now_ms), (self.puts.count, self.gets.count))

    def _flows(self) -> list[Flow]:
        return [
            self.puts,
            self.gets,
            *self.topic_puts.values(),
            *self.group_gets.values(),
            *self.group_send_backs.values(),
        ]

    def _numbers(self) -> tuple[int, ...]:
        return (self.puts.count, self.gets.count, self.found_count, self.missed_count)

    # Rates, per second over 10, 60 and 600 s

    def put_rates(self) -> list[float]:
        return self._rates(0)

    def transferred_rates(self) -> list[float]:
        return self._rates(1)

    def found_rates(self) -> list[float]:
        return self._rates(2)

    def missed_rates(self) -> list[float]:
        return self._rates(3)

    def history(self, step_s: int) -> tuple[list[float], list[float]]:
        """Messages put and got per second in each step of the last ten minutes, oldest first; fewer
        steps if the broker started later."""
        step_ms = step_s * SECOND_MS
        # Steps have fixed boundaries, so that a chart does not change its past values.
        samples = [
            sample
            for before, sample in pairwise(self._seconds)
            if sample[0] // step_ms != before[0] // step_ms
        ]
        steps = [
            (SECOND_MS / (now_ms - then_ms), now, then)
            for (then_ms, then), (now_ms, now) in pairwise(samples)
        ]
        puts = [(now[0] - then[0]) * part for part, now, then in steps]
        return puts, [(now[1] - then[1]) * part for part, now, then in steps]

    def _rates(self, rank: int) -> list[float]:
        last_ms, last = self._seconds[-1]
        rates: list[float] = []
        for window_s in RATE_WINDOWS_S:
            begin_ms = last_ms - window_s * SECOND_MS
            first_ms, first = next(sample for sample in self._seconds if sample[0] >= begin_ms)
            elapsed_ms = last_ms - first_ms
            grown = last[rank] - first[rank]
            rates.append(grown * SECOND_MS / elapsed_ms if elapsed_ms else 0.0)
        return rates


def by_group(flows: dict[tuple[str, str], Flow]) -> Iterator[Series]:
    """Messages of each flow, labelled by group and topic."""
    for (topic, group), flow in flows.items():
        yield (group, topic), flow.count


def _day_of(now_ms: int) -> tuple[int, int, int]:
    """The local day, as an operator counts."""
    return time.localtime(now_ms // SECOND_MS)[:3]
