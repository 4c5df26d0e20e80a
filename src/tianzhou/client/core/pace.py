"""How a consumer gets on with each topic, over the last minute: what tools show of it."""

from typing import Final, NamedTuple

BUCKET_S: Final = 10
BUCKETS: Final = 6
"""Together a minute, as long as the figures of a Java consumer reach back."""


class TopicPace(NamedTuple):
    """Rates are messages a second, times are milliseconds on average."""

    pulled: float = 0.0
    pull_ms: float = 0.0
    consumed: float = 0.0
    consume_ms: float = 0.0
    """Of a call of the listener. Without a listener nobody knows it."""
    failed: float = 0.0
    failures: int = 0


class _Bucket:
    """What happened to one topic in some seconds."""

    __slots__ = (
        "call_s", "calls", "consumed", "failed", "number", "pull_s", "pulled", "pulls",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_s = self.call_s = 0.0


class Pace:
    """Owner: whoever consumes. Time is an argument, in seconds, and never goes back."""

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
        """The listener had some messages for so long, and finished so many of them."""
        bucket = self._bucket(topic, now_s)
        bucket.calls += 1
        bucket.call_s += took_s
        bucket.consumed += finished
        self.finished_count += finished

    def finished(self, topic: str, count: int, now_s: float) -> None:
        """Without a call of a listener."""
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

    def of(self, topic: str, now_s: float) -> TopicPace:
        oldest = int(now_s / BUCKET_S) - BUCKETS + 1
        rows = [row for row in self._topics.get(topic, ()) if row.number >= oldest]
        since_s = max(oldest * BUCKET_S, self._started_s)
        seconds = max(now_s - since_s, 1.0)
        pulls, calls = sum(row.pulls for row in rows), sum(row.calls for row in rows)
        failures = sum(row.failed for row in rows)
        return TopicPace(
            pulled=sum(row.pulled for row in rows) / seconds,
            pull_ms=sum(row.pull_s for row in rows) * 1000 / max(pulls, 1),
            consumed=sum(row.consumed for row in rows) / seconds,
            consume_ms=sum(row.call_s for row in rows) * 1000 / max(calls, 1),
            failed=failures / seconds,
            failures=failures,
        )
