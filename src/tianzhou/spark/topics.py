"""The current queues of a query's topics, and their offsets."""

import logging
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import OffsetGone
from tianzhou.client.errors import (
    CallTimeout,
    ClientError,
    ConnectionLost,
    NoNameServer,
    NoPermission,
    NoRoute,
    TopicNotFound,
    Unreachable,
)
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.options import ReadOptions
from tianzhou.spark.plan import Offsets
from tianzhou.wire import names
from tianzhou.wire.queues import MessageQueue

_LOG: Final = logging.getLogger("tianzhou.spark")

# Internal topics of the brokers, which patterns never match.
_NAMES_OF_BROKERS: Final = frozenset(
    {
        names.DEFAULT_TOPIC,
        names.SCHEDULE_TOPIC,
        names.SELF_TEST_TOPIC,
        names.BENCHMARK_TOPIC,
        names.OFFSET_MOVED_TOPIC,
        names.CHECKED_OUT_TOPIC,
        names.HEARTBEAT_SYNC_TOPIC,
    }
)
_PREFIXES_OF_BROKERS: Final = (
    names.SYSTEM_PREFIX,
    names.SYSTEM_PREFIX_OLD,
    names.NAMESPACE_PREFIX,
)


def is_of_brokers(topic: str) -> bool:
    return (
        topic in _NAMES_OF_BROKERS
        or topic.startswith(_PREFIXES_OF_BROKERS)
        or topic.endswith(names.REPLY_TOPIC_SUFFIX)
    )


_AWAY: Final = (Unreachable, ConnectionLost, CallTimeout, NoRoute)
"""Errors that mean that a broker is currently unreachable."""


@contextmanager
def translated_errors(options: ReadOptions) -> Generator[None]:
    """Translate errors of the client into errors of the data source."""
    try:
        yield
    except OffsetGone as error:
        raise DataLoss(f"{error}. With failOnDataLoss=false the query skips them") from None
    except TopicNotFound as error:
        raise SourceError(
            "UNKNOWN_TOPIC", f"topic {error.topic!r} does not exist at {options.cluster.nameserver}"
        ) from None
    except NoNameServer as error:
        raise SourceError("NAMESERVER_UNREACHABLE", f"{error}; check option nameserver") from None
    except NoPermission as error:
        raise SourceError("NO_PERMISSION", str(error)) from None
    except _AWAY as error:
        raise SourceError("BROKER_UNREACHABLE", str(error)) from None
    except TianzhouError as error:
        raise SourceError("READ_FAILED", str(error)) from error


class Topics:
    """The topics that the options select. Owner: the reader on the driver."""

    def __init__(self, brokers: Brokers, options: ReadOptions) -> None:
        self._brokers = brokers
        self._options = options

    def names(self) -> list[str]:
        wanted = self._options.topics
        if not isinstance(wanted, re.Pattern):
            return list(wanted)
        found = [
            topic
            for topic in self._brokers.topics()
            if wanted.fullmatch(topic) and not is_of_brokers(topic)
        ]
        return [topic for topic in found if not topic.startswith(names.RETRY_PREFIX)]

    def queues(self, topics: Iterable[str] | None = None) -> list[MessageQueue]:
        """Return every readable queue. Raises TopicNotFound if a named topic does not exist."""
        found: list[MessageQueue] = []
        for topic in self.names() if topics is None else topics:
            found += self._brokers.route(topic, refresh=True).read_queues
        return found

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._brokers.min_offsets(queues)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._brokers.max_offsets(queues)

    def earliest_of_reachable(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._of_reachable(self.earliest, queues)

    def latest_of_reachable(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._of_reachable(self.latest, queues)

    def _of_reachable(
        self, ask: Callable[[Iterable[MessageQueue]], Offsets], queues: Iterable[MessageQueue]
    ) -> Offsets:
        """Query each broker and leave out the queues of unreachable ones, so that a stream
        continues without them. Raises if no broker responds."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        found: Offsets = {}
        last: ClientError | None = None
        for broker, here in by_broker.items():
            try:
                found |= ask(here)
            except _AWAY as error:
                _LOG.warning("skipping broker %s in this micro-batch: %s", broker, error)
                last = error
        if last is not None and not found:
            raise last
        return found
