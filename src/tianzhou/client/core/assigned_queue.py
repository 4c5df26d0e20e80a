"""A queue assigned to this member, as a state machine.

    ACQUIRING ──▶ PULLING ◀──▶ PAUSED
        │            │            │
        └────────────┴─────┬──────┘
                           ▼
                       DRAINING ──▶ RELEASED

A queue is acquired when its offset is known and, in ordered consumption, its lock is granted. It
pauses while its window is full, or while the user has paused it. A revoked queue drains: no further
message is started, and those in flight are waited for. Messages are started in order, so afterwards
the committed offset is exactly where the next owner must start. A queue that moves to another
offset, after a reset or a seek, is replaced by a new one and released at once: its messages in
flight no longer count.

`TABLE` has a cell for every state and event. The shells in `consume` report events and perform the
action that `handle` returns.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from tianzhou.client.core.pulling import PullPlan
from tianzhou.client.core.window import FlowLimits, Room, Window
from tianzhou.wire.queues import MessageQueue


class State(enum.IntEnum):
    """In the order of a queue's life: from DRAINING on, it is no longer ours to consume."""

    ACQUIRING = 0
    PULLING = 1
    PAUSED = 2
    DRAINING = 3
    RELEASED = 4


class Event(enum.IntEnum):
    ACQUIRED = 0
    """The queue is registered with its offset, and locked if that is necessary."""
    PAUSE = 1
    """The window is full, or the user paused the queue."""
    RESUME = 2
    """The reason for the pause is gone."""
    REVOKED = 3
    """A rebalance assigned the queue to another member, or the consumer stops."""
    DRAINED = 4
    """No message is in flight any more, or the release timeout passed."""
    MOVED = 5
    """The queue continues at another offset, in a new AssignedQueue."""


class Action(enum.Enum):
    PULL = "pull"
    """Send pull requests."""
    HOLD = "hold"
    """Send no further pull request; deliver pulled messages."""
    DRAIN = "drain"
    """Stop pulling, drop messages that are not started, and wait for those in flight."""
    COMMIT = "commit"
    """Commit the final offset and release the lock."""
    DISCARD = "discard"
    """Stop pulling and drop all messages; the queue that replaces this one commits."""
    NOTHING = "nothing"
    IMPOSSIBLE = "impossible"
    """The event cannot occur in this state: a bug in a shell."""


_A, _E, _S = Action, Event, State
_NOTHING, _NEVER = _A.NOTHING, _A.IMPOSSIBLE

TABLE: Final[dict[State, dict[Event, tuple[State, Action]]]] = {
    _S.ACQUIRING: {
        _E.ACQUIRED: (_S.PULLING, _A.PULL),
        _E.PAUSE: (_S.ACQUIRING, _NEVER),
        _E.RESUME: (_S.ACQUIRING, _NEVER),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.ACQUIRING, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    _S.PULLING: {
        _E.ACQUIRED: (_S.PULLING, _NEVER),
        _E.PAUSE: (_S.PAUSED, _A.HOLD),
        _E.RESUME: (_S.PULLING, _NOTHING),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.PULLING, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    _S.PAUSED: {
        _E.ACQUIRED: (_S.PAUSED, _NEVER),
        _E.PAUSE: (_S.PAUSED, _NOTHING),
        _E.RESUME: (_S.PULLING, _A.PULL),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.PAUSED, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    # A revoked queue is no longer in the assignment, so it cannot be acquired, revoked or moved;
    # its puller may still notice a full window or room.
    _S.DRAINING: {
        _E.ACQUIRED: (_S.DRAINING, _NEVER),
        _E.PAUSE: (_S.DRAINING, _NOTHING),
        _E.RESUME: (_S.DRAINING, _NOTHING),
        _E.REVOKED: (_S.DRAINING, _NEVER),
        _E.DRAINED: (_S.RELEASED, _A.COMMIT),
        _E.MOVED: (_S.DRAINING, _NEVER),
    },
    _S.RELEASED: {
        _E.ACQUIRED: (_S.RELEASED, _NEVER),
        _E.PAUSE: (_S.RELEASED, _NOTHING),
        _E.RESUME: (_S.RELEASED, _NOTHING),
        _E.REVOKED: (_S.RELEASED, _NEVER),
        _E.DRAINED: (_S.RELEASED, _NOTHING),
        _E.MOVED: (_S.RELEASED, _NEVER),
    },
}


class AssignedQueue:
    """The state of one assigned queue, its messages in work and its limits.

    Owner: the event loop, except `in_flight`, which the lock of `consume.ready.Ready` protects.
    """

    __slots__ = (
        "finished_at",
        "in_flight",
        "limits",
        "locked_until",
        "on_idle",
        "on_room",
        "plan",
        "pulled_at",
        "queue",
        "state",
        "waiting",
        "window",
    )

    def __init__(self, plan: PullPlan, offset: int, limits: FlowLimits) -> None:
        self.plan = plan
        self.queue: MessageQueue = plan.queue
        self.window = Window(offset)
        self.limits = limits
        self.state = State.ACQUIRING
        self.in_flight = 0
        """Messages that a listener or the user is processing."""
        self.waiting: deque[Any] = deque()
        """In ordered consumption: pulled records that are not started yet."""
        self.locked_until = 0.0
        """In ordered consumption: when the broker's lock expires."""
        self.pulled_at = self.finished_at = 0.0
        """Times of the last response and of the last finished message; monotonic seconds."""
        self.on_room: Callable[[], None] | None = None
        """Called once when the window is no longer full."""
        self.on_idle: Callable[[], None] | None = None
        """Called once when no message is in flight."""

    def handle(self, event: Event) -> Action:
        """Enter the next state; return what the shell must do."""
        self.state, action = TABLE[self.state][event]
        assert action is not Action.IMPOSSIBLE, f"{event.name} in state {self.state.name}"
        return action

    @property
    def is_revoked(self) -> bool:
        """No message of the queue is started any more."""
        return self.state >= State.DRAINING

    @property
    def is_released(self) -> bool:
        """The final offset is decided: messages still in flight no longer count."""
        return self.state is State.RELEASED

    @property
    def has_room(self) -> bool:
        return self.window.room(self.limits) is Room.FREE

    def finish(self, offsets: Iterable[int], now_s: float) -> int:
        """Mark messages as finished; return how many of them were in work."""
        finish, count = self.window.finish, 0
        for offset in offsets:
            count += finish(offset)
        self.finished_at = now_s
        if self.on_room is not None and self.has_room:
            on_room, self.on_room = self.on_room, None
            on_room()
        return count

    def settle(self, count: int) -> bool:
        """Count messages as no longer in flight; return whether none is left."""
        self.in_flight -= count
        return not self.in_flight

    def report_idle(self) -> None:
        """Call `on_idle`, if it is set: no message is in flight any more."""
        if self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()
