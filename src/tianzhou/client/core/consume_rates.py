"""Consume rates of each topic over the last minute, as tools show them."""

from typing import Final, NamedTuple

BUCKET_S: Final = 10
BUCKETS: Final = 6
"""Together one minute, the period of a Java consumer's statistics."""


class TopicRates(NamedTuple):
    """Rates in messages per second, times as averages in milliseconds."""

    pulled: float = 0.0
    pull_ms: float = 0.0
    consumed: float = 0.0
    consume_ms: float = 0.0
    """Duration of a listener call; 0 without a listener."""
    failed: float = 0.0
    failures: int = 0


class _Bucket:
    """Counters of one topic for BUCKET_S seconds."""

    __slots__ = (
        "call_s",
        "calls",
        "consumed",
        "failed",
        "number",
        "pull_s",
        "pulled",
        "pulls",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_s = self.call_s = 0.0


class ConsumeRates:
    """Counters of pulls, calls and failures. Times are arguments, in monotonic seconds.

    Owner: the event loop of the consumer.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._topics: dict[str, list[_Bucket]] = {}
        self.finished_count = 0
        self.failed_count = 0

    def pulled(self, topic: str, count: int, took_s: float, now_s: float) -> None:
        bucket = self._bucket(topic, now_s)
        bucket.pulls += 1
        bucket.pulled += count
        bucket.pull_s += took_s

    def called(self, topic: str, took_s: float, finished: int, now_s: float) -> None:
        """Record a listener call that took `took_s` seconds and finished this many messages."""
        bucket = self._bucket(topic, now_s)
        bucket.calls += 1
        bucket.call_s += took_s
        bucket.consumed += finished
        self.finished_count += finished

    def finished(self, topic: str, count: int, now_s: float) -> None:
        """Record messages that were finished without a listener."""
        self._bucket(topic, now_s).consumed += count
        self.finished_count += count

    def failed(self, topic: str, count: int, now_s: float) -> None:
        self._bucket(topic, now_s).failed += count
        self.failed_count += count

    def _bucket(self, topic: str, now_s: float) -> _Bucket:
        number = int(now_s / BUCKET_S)
        buckets = self._topics.get(topic)
        if buckets is None:
            buckets = self._topics[topic] = [_Bucket(number)]
        last = buckets[-1]
        if last.number < number:
            last = _Bucket(number)
            buckets.append(last)
            del buckets[:-BUCKETS]
        return last

    def of(self, topic: str, now_s: float) -> TopicRates:
        oldest = int(now_s / BUCKET_S) - BUCKETS + 1
        rows = [row for row in self._topics.get(topic, ()) if row.number >= oldest]
        since_s = max(oldest * BUCKET_S, self._started_s)
        seconds = max(now_s - since_s, 1.0)
        pulls, calls = sum(row.pulls for row in rows), sum(row.calls for row in rows)
        failures = sum(row.failed for row in rows)
        return TopicRates(
            pulled=sum(row.pulled for row in rows) / seconds,
            pull_ms=sum(row.pull_s for row in rows) * 1000 / max(pulls, 1),
            consumed=sum(row.consumed for row in rows) / seconds,
            consume_ms=sum(row.call_s for row in rows) * 1000 / max(calls, 1),
            failed=failures / seconds,
            failures=failures,
        )
