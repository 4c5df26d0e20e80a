"""Slices: what one capability contributes to a broker, and what every slice may use.

Each folder of the broker that an operator can name has a `build` function. It takes `Foundation`
and the slices below it, and returns its parts together with a `Slice`. `wiring` concatenates the
slices; a request code, a background service or a metric is therefore declared where it is
implemented, and nowhere else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tianzhou.base.clock import Clock
from tianzhou.broker.alarms import Alarms
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.metrics import Metric
from tianzhou.broker.role import RoleState
from tianzhou.broker.stats import Stats
from tianzhou.broker.writing.light_queues import LightQueues
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import Handler
from tianzhou.store.store import MessageStore


class Watch(Protocol):
    """Background work of every broker. The server calls `tick` about ten times a second."""

    def tick(self) -> bool:
        """Run one slice of the work; returns whether more is already due."""
        ...

    def finish(self) -> None:
        """Save the progress: the broker stops and the log is flushed."""
        ...


class Service(Watch, Protocol):
    """Background work of the master only, because it writes messages."""

    def begin(self) -> None:
        """Load the state from the store and discard what was known before: the broker is the
        master from now on, and its log is dispatched to the end and may be written to."""
        ...


class ModeFacts(Protocol):
    """What the slices below replication ask of the broker's mode; see `replica/mode.py`."""

    @property
    def replicates_tables(self) -> bool:
        """Whether changes of topics and groups are committed through the log."""
        ...

    @property
    def lacks_messages(self) -> bool:
        """Whether another broker may have messages that this one does not have."""
        ...

    @property
    def where_next(self) -> Callable[[int], int] | None:
        """Returns the id of the broker to read from next, if this many bytes of the log are
        unread. None: there is no other broker to read from."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What every slice may use."""

    config: BrokerConfig
    store: MessageStore
    clock: Clock
    writer: Writer
    role_state: RoleState
    mode: ModeFacts
    stats: Stats
    alarms: Alarms
    light_queues: LightQueues


class _Serves(Protocol):
    def handlers(self) -> dict[int, Handler]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a capability adds to the broker."""

    serves: tuple[_Serves, ...] = ()
    services: tuple[Service, ...] = ()
    watches: tuple[Watch, ...] = ()
    metrics: tuple[Metric, ...] = ()
    adopts: tuple[Callable[[BrokerConfig], None], ...] = ()
    """Called with the settings when one of them changes while the broker runs."""


def handlers_of(slices: Iterable[Slice]) -> dict[int, Handler]:
    """The handlers of all slices by request code. Every code has one handler."""
    handlers: dict[int, Handler] = {}
    for part in slices:
        for served in part.serves:
            added = served.handlers()
            assert not handlers.keys() & added.keys(), "a code is served twice"
            handlers |= added
    return handlers
