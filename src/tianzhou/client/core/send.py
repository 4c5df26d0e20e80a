"""One send request with all its attempts, as a state machine.

    ROUTING ──▶ CONNECTING ──▶ IN_FLIGHT ──▶ DONE
       ▲             │             │
       │             └── failed ───┤
       ├──────── REFRESHING ◀──────┤
       └──────── PAUSED ◀──────────┘

Every attempt needs a route, a queue, a connection and a response. After a failed attempt the
machine decides, from the error and the options, whether to try another broker, to refresh the route
first, to pause, or to give up. It knows neither sockets nor clocks: `aio.send_engine` reports
events with the time, and performs the action that `handle` returns.

`TABLE` has a cell for every state and event.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

from tianzhou.base.errors import Retry, TianzhouError
from tianzhou.client.core.routing import Fixed, Latencies, Pick, Rotation, TopicRoute
from tianzhou.client.core.send_request import SendResult, SendStatus
from tianzhou.client.errors import (
    CallTimeout,
    ClientClosed,
    ClientError,
    ConnectionLost,
    InvalidParameter,
    NoNameServer,
    NoPermission,
    NoRoute,
    NotStoreOk,
    RemoteError,
    SendFailed,
    SendTimeout,
    ServiceNotAvailable,
    TopicNotExist,
    TopicNotFound,
    Try,
    Unreachable,
    may_be_stored,
)
from tianzhou.client.options import ProducerOptions
from tianzhou.wire.queues import MessageQueue

PAUSE_S: Final = 0.1
"""Pause before a retry on the broker that just failed, if there is no other. Each further pause is
four times as long."""
PAUSE_GROWTH: Final = 4
PAUSES_GROW: Final = 5
"""How often the pause grows: an ordered message may be retried more often than the options
allow."""

MOVED: Final = (NoPermission, TopicNotExist)
"""A broker rejects a message because the client's route is stale: the broker is being drained, or
no longer has the topic. Nothing was stored."""

STALE: Final = (*MOVED, InvalidParameter)
"""Also if the broker no longer has the queue: the topic was created again, or changed, with fewer
queues. A fresh route shows whether that is the reason."""

_LAST_ATTEMPT_ONLY: Final = (TopicNotFound, NoNameServer, RemoteError)
"""These errors are about the last attempt only; an earlier attempt may have stored the message."""


class State(enum.IntEnum):
    ROUTING = 0
    """Waits for the route of the topic."""
    CONNECTING = 1
    """Has a queue; waits for a connection to its broker."""
    IN_FLIGHT = 2
    """Written; waits for the response."""
    REFRESHING = 3
    """Waits for a fresh route, because a response showed that the route is stale."""
    PAUSED = 4
    """Waits before it tries the same broker again, or until the route changes."""
    DONE = 5


class Event(enum.IntEnum):
    ROUTED = 0
    """The route is known; with the route."""
    CONNECTED = 1
    STORED = 2
    """The broker stored the messages; with their results."""
    FAILED = 3
    """The wait or the attempt failed; with the error."""
    REFRESHED = 4
    """The route was refreshed."""
    WOKEN = 5
    """The route changed during a pause."""
    EXPIRED = 6
    """The deadline of the wait, `until_s`, passed."""
    ABORTED = 7
    """An error that no further attempt can fix; with the error."""


class Action(enum.Enum):
    WRITE = "write"
    """Write the request to `queue` at `address`; report STORED or FAILED by `until_s`."""
    WAIT = "wait"
    """Wait, until `until_s`, for what the state waits for; it may be there already."""
    RETRY = "retry"
    """As WAIT, and refresh the route in the background."""
    REFRESH = "refresh"
    """Refresh the route, until `until_s`."""
    DONE = "done"
    """Report `results` or `failure`."""
    NOTHING = "nothing"


class Failure:
    """Why a request was not sent. Each caller gets its own exception, because raising one exception
    twice mixes up its tracebacks."""

    __slots__ = ("_final", "_timed_out", "_topic", "spent_s", "tries")

    def __init__(
        self,
        topic: str,
        tries: Sequence[Try] = (),
        *,
        spent_s: float = 0.0,
        timed_out: bool = False,
        final: BaseException | None = None,
    ) -> None:
        """`final` is an error that no further attempt would change; callers get a copy of it."""
        self._topic = topic
        self.tries = tries
        self.spent_s = spent_s
        self._timed_out = timed_out
        self._final = final

    @property
    def is_final(self) -> bool:
        return self._final is not None

    @property
    def is_moved(self) -> bool:
        """Whether nothing was stored and a fresh route may lead to a broker that accepts the
        message."""
        tries = self.tries
        return (
            bool(tries)
            and isinstance(tries[-1].error, STALE)
            and not any(may_be_stored(tried.error) for tried in tries)
        )

    def error(self) -> BaseException:
        """Return a new exception for one caller."""
        if self._final is not None:
            return _copied(self._final)
        kind = SendTimeout if self._timed_out else SendFailed
        error = kind(self._topic, self.tries, self.spent_s)
        error.__cause__ = self.tries[-1].error if self.tries else None
        return error


def _copied(error: BaseException) -> BaseException:
    other = error.__class__.__new__(error.__class__)
    other.args = error.args
    other.__dict__.update(error.__dict__)
    other.__cause__ = error
    return other


OnSent = Callable[[Sequence[SendResult], Failure | None], None]
"""Gets the result of each message of a request, or the failure; called once."""


class SendPolicy:
    """What the sends of one producer share when they decide.

    Owner: the event loop of the producer.
    """

    def __init__(
        self,
        options: ProducerOptions,
        known_route: Callable[[str], TopicRoute | None],
        random_index: Callable[[int], int],
    ) -> None:
        self.options = options
        self.known_route = known_route
        self.latencies = Latencies(options.fault_avoidance)
        self.rotation = Rotation(options.queue_choice, self.latencies, random_index)
        self.is_closed = False

    def choose(
        self, route: TopicRoute, pick: Pick | None, avoid: Sequence[str], now_s: float
    ) -> tuple[MessageQueue, str]:
        """Return a queue and the address of its broker. Raises NoRoute."""
        if not route.write_queues:
            raise NoRoute(f"topic {route.topic!r} has no queue that can be written to")
        if pick is None:
            queue = self.rotation.choose(route.write_queues, avoid, now_s)
        else:
            queue = pick(route)
        address = route.address(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} of topic {route.topic!r} has no master")
        return queue, address


# Attribute access of an Enum is slow, and every send needs these.
_ROUTING: Final = State.ROUTING
_CONNECTING: Final = State.CONNECTING
_IN_FLIGHT: Final = State.IN_FLIGHT
_DONE: Final = State.DONE
_WAIT: Final = Action.WAIT
_WRITE: Final = Action.WRITE
_REPORT: Final = Action.DONE
_SEND_OK: Final = SendStatus.SEND_OK


class SendMachine:
    """The attempts of one send request.

    Owner: the event loop of the producer.
    Invariant: once the state is DONE, nothing changes
    """

    __slots__ = (
        "address",
        "began_s",
        "deadline_s",
        "outcome",
        "pick",
        "policy",
        "queue",
        "state",
        "topic",
        "tried_s",
        "tries",
        "until_s",
    )

    def __init__(
        self, policy: SendPolicy, topic: str, pick: Pick | None, *, now_s: float, limit_s: float
    ) -> None:
        """`pick` chooses the queue of a message that cannot go to any queue. `limit_s` is the
        timeout of all attempts together."""
        self.policy = policy
        self.topic = topic
        self.pick = pick
        self.began_s = now_s
        self.tried_s: float = now_s
        self.deadline_s = self.until_s = now_s + limit_s
        self.state = _ROUTING
        self.tries: Sequence[Try] = ()
        self.queue: MessageQueue | None = None
        self.address = ""
        self.outcome: Sequence[SendResult] | Failure = ()
        """The results, or the failure; valid in state DONE."""

    def handle(self, event: Event, now_s: float, detail: Any = None) -> Action:
        """Enter the next state; return what the shell must do."""
        return _CELLS[self.state][event](self, now_s, detail)

    # Progress

    def _choose(self, now_s: float, route: TopicRoute) -> Action:
        avoid = [tried.broker_name for tried in self.tries] if self.tries else ()
        self.until_s = self._attempt_deadline_s(now_s)
        try:
            self.queue, self.address = self.policy.choose(route, self.pick, avoid, now_s)
        except NoRoute as error:
            self.queue, self.address = None, ""
            return self._attempt_failed(now_s, error)
        self.state = _CONNECTING
        self.tried_s = now_s
        return _WAIT

    def _connected(self, now_s: float, _detail: None) -> Action:
        if now_s != self.tried_s:  # the attempt starts when it is written
            self.tried_s = now_s
            self.until_s = self._attempt_deadline_s(now_s)
        if self.until_s <= now_s:
            return self._timed_out(now_s)
        self.state = _IN_FLIGHT
        return _WRITE

    def _stored(self, now_s: float, results: Sequence[SendResult]) -> Action:
        assert self.queue is not None
        status, name = results[0].status, self.queue.broker_name
        if status is not _SEND_OK and self._is_worth_another(name):
            return self._attempt_failed(now_s, NotStoreOk(self.address, status.name))
        action = self._done(results)
        self.policy.latencies.took(name, (now_s - self.tried_s) * 1000, now_s)
        return action

    def _restart(self, now_s: float, _detail: object = None) -> Action:
        """Make another attempt after a pause, or give up because the time is over."""
        if self.deadline_s <= now_s:
            return self._timed_out(now_s)
        return self._route()

    def _route(self) -> Action:
        self.state = _ROUTING
        self.until_s = self.deadline_s
        return _WAIT

    # Failure

    def _attempt_failed(self, now_s: float, error: TianzhouError) -> Action:
        """Decide what to do after a failed attempt."""
        name = self.queue.broker_name if self.queue is not None else ""
        self.tries = [*self.tries, Try(name, self.address, error)]
        if name and error.retry is Retry.OTHER_BROKER:
            self.policy.latencies.failed(name, now_s)
        is_unclear = isinstance(error, InvalidParameter) and self._may_retry(error)
        if error.retry is Retry.NEVER and not is_unclear:
            return self._give_up(now_s, error)
        if not self._may_retry(error):
            return self._fail(now_s)
        if self.deadline_s <= now_s:
            return self._timed_out(now_s)
        if error.retry is Retry.AFTER_ROUTE_REFRESH or is_unclear:
            self.state = State.REFRESHING
            self.until_s = self._attempt_deadline_s(now_s)
            return Action.REFRESH
        if self._has_another_broker():
            self._route()
            return Action.RETRY
        return self._pause(now_s)

    def _may_retry(self, error: TianzhouError) -> bool:
        """Whether to make another attempt.

        An ordered message is sent again only if it was certainly not stored: a second copy after
        messages sent meanwhile would be out of order. If its broker is being drained, the route
        will soon change, so it is retried until its timeout. The same applies if its broker is not
        the master, or not yet: the queue stays the same, so a send to a named queue is retried too.
        """
        if self.policy.is_closed:
            return False
        if self.pick is None or isinstance(error, Unreachable | NoRoute):
            return len(self.tries) < self.policy.options.tries_max
        if isinstance(error, ServiceNotAvailable):
            return True
        return isinstance(error, STALE) and not isinstance(self.pick, Fixed)

    def no_response(self, code: int, now_s: float, *, is_open: bool) -> ClientError:
        """Return why an attempt got no response; `is_open` says whether its connection is open."""
        if self.policy.is_closed:
            return ClientClosed(f"the producer was closed before {self.address} responded")
        if is_open:
            return CallTimeout(self.address, code, now_s - self.tried_s)
        return ConnectionLost(self.address, code)

    def _not_connected(self, now_s: float, _detail: None) -> Action:
        waited_s = now_s - self.tried_s
        error = Unreachable(self.address, f"no connection within {waited_s:.3g} s")
        return self._attempt_failed(now_s, error)

    def _refreshed(self, now_s: float, error: BaseException | None) -> Action:
        """Continue even if the refresh failed: the old route may lead to another broker."""
        if isinstance(error, TopicNotFound | ClientClosed):
            return self._give_up(now_s, error)
        rejected = self.tries[-1].error
        if isinstance(rejected, InvalidParameter):
            route = self.policy.known_route(self.topic)
            is_gone = route is not None and self.queue not in route.write_queues
            return self._route() if is_gone else self._give_up(now_s, rejected)
        return self._route() if self._has_another_broker() else self._pause(now_s)

    def _pause(self, now_s: float) -> Action:
        """Wait, but no longer than half of the time that is left."""
        pause_s = PAUSE_S * PAUSE_GROWTH ** min(len(self.tries) - 1, PAUSES_GROW)
        self.state = State.PAUSED
        self.until_s = now_s + max(0.0, min(pause_s, (self.deadline_s - now_s) / 2))
        return Action.RETRY

    def _has_another_broker(self, *, besides: str = "") -> bool:
        route = self.policy.known_route(self.topic)
        if route is None:
            return False
        if self.pick is not None:  # it may pick another queue once its last one is gone
            return self.queue not in route.write_queues and bool(route.write_queues)
        avoid = {besides, *(tried.broker_name for tried in self.tries)}
        return any(queue.broker_name not in avoid for queue in route.write_queues)

    def _is_worth_another(self, name: str) -> bool:
        """Whether a message stored with a weaker guarantee is also sent to another broker."""
        options = self.policy.options
        if not options.retry_not_store_ok or len(self.tries) + 1 >= options.tries_max:
            return False
        return self._has_another_broker(besides=name)

    def _attempt_deadline_s(self, now_s: float) -> float:
        """Return the deadline of an attempt that starts now; the last has all the time left."""
        options = self.policy.options
        if self.pick is not None or len(self.tries) + 1 >= options.tries_max:
            return self.deadline_s
        return min(self.deadline_s, now_s + options.try_timeout_s)

    # The end

    def _give_up(self, now_s: float, error: BaseException) -> Action:
        """Fail without another attempt. The caller gets this error, unless the response to an
        earlier attempt was lost: then the message may be stored, and `tries` must say so."""
        tries = self.tries
        if isinstance(error, _LAST_ATTEMPT_ONLY) and any(may_be_stored(t.error) for t in tries):
            if tries[-1].error is not error:
                self.tries = [*tries, Try("", "", error)]
            return self._fail(now_s)
        return self._done(Failure(self.topic, tries, final=error))

    def _timed_out(self, now_s: float, _detail: None = None) -> Action:
        return self._fail(now_s, timed_out=True)

    def _fail(self, now_s: float, *, timed_out: bool = False) -> Action:
        last = self.tries[-1].error if self.tries else None
        timed_out = timed_out or isinstance(last, CallTimeout)
        spent_s = now_s - self.began_s
        return self._done(Failure(self.topic, self.tries, spent_s=spent_s, timed_out=timed_out))

    def _done(self, outcome: Sequence[SendResult] | Failure) -> Action:
        self.state, self.outcome = _DONE, outcome
        return _REPORT

    def _ignore(self, _now_s: float, _detail: object) -> Action:
        """The outcome was reported; nothing that happens afterwards changes it."""
        return Action.NOTHING

    def _impossible(self, _now_s: float, _detail: object) -> Action:
        """A bug in the shell: the event cannot occur in this state."""
        raise AssertionError(f"unexpected event for a send in state {self.state.name}")

    @staticmethod
    def table() -> "dict[State, dict[Event, Cell]]":
        """Return what every event does in every state."""
        never, machine = SendMachine._impossible, SendMachine
        give_up = {Event.ABORTED: machine._give_up}
        nothing: dict[Event, Cell] = dict.fromkeys(Event, never)
        return {
            State.ROUTING: {
                **nothing,
                **give_up,
                Event.ROUTED: machine._choose,
                Event.FAILED: machine._give_up,
                Event.EXPIRED: machine._timed_out,
            },
            State.CONNECTING: {
                **nothing,
                **give_up,
                Event.CONNECTED: machine._connected,
                Event.FAILED: machine._attempt_failed,
                Event.EXPIRED: machine._not_connected,
            },
            State.IN_FLIGHT: {
                **nothing,
                **give_up,
                Event.STORED: machine._stored,
                Event.FAILED: machine._attempt_failed,
            },
            State.REFRESHING: {
                **nothing,
                **give_up,
                Event.REFRESHED: machine._refreshed,
                Event.FAILED: machine._refreshed,
                Event.EXPIRED: machine._refreshed,
            },
            State.PAUSED: {
                **nothing,
                **give_up,
                Event.WOKEN: machine._restart,
                Event.EXPIRED: machine._restart,
                Event.FAILED: machine._give_up,
            },
            State.DONE: dict.fromkeys(Event, machine._ignore),
        }


Cell = Callable[[SendMachine, float, Any], Action]

TABLE: Final = SendMachine.table()
_CELLS: Final = tuple(tuple(TABLE[state][event] for event in Event) for state in State)
"""The table as tuples: every send looks up three of its cells."""
