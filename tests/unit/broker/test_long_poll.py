"""Long polling, with waiters that know nothing of pulls."""

from dataclasses import dataclass, field

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.broker.fetch.long_poll import LongPolls
from tianzhou.net.rpc import Peer
from tianzhou.testing.small_broker import RecordingPeer

ONE, OTHER = queue_key("t", 0), queue_key("t", 1)


@dataclass(slots=True)
class Waiting:
    deadline: float
    peer: Peer = field(default_factory=RecordingPeer)
    group: str = "g"


class Polls:
    """Long polls that record which waiters were resumed."""

    def __init__(self, count_max: int = 10) -> None:
        self.resumed: list[tuple[QueueKey, Waiting, bool]] = []
        self.polls = LongPolls[Waiting](count_max, self.resume)

    def resume(self, key: QueueKey, waiter: Waiting, may_wait: bool) -> None:
        self.resumed.append((key, waiter, may_wait))


def test_long_polls_arrival_resumes_all_waiters_of_the_queue() -> None:
    world = Polls()
    first, second, third = Waiting(1), Waiting(2), Waiting(3)
    world.polls.park(ONE, first)
    world.polls.park(ONE, second)
    world.polls.park(OTHER, third)
    world.polls.arrived(ONE)
    assert world.resumed == [(ONE, first, True), (ONE, second, True)]
    world.polls.arrived(ONE)
    assert len(world.resumed) == 2
    assert len(world.polls) == 1


def test_long_polls_resumed_waiter_may_park_again() -> None:
    polls = LongPolls[Waiting](10, lambda key, waiter, _: polls.park(key, waiter))
    polls.park(ONE, Waiting(1))
    polls.arrived(ONE)
    assert len(polls) == 1
    assert polls.is_waiting(ONE, "g")
    assert not polls.is_waiting(ONE, "another")
    assert not polls.is_waiting(OTHER, "g")


def test_long_polls_that_are_full_have_room_after_an_arrival() -> None:
    polls = Polls(2).polls
    polls.park(ONE, Waiting(1))
    assert not polls.is_full
    polls.park(OTHER, Waiting(1))
    assert polls.is_full
    polls.arrived(ONE)
    assert not polls.is_full


def test_long_polls_expired_waiters_are_resumed_for_the_last_time() -> None:
    world = Polls()
    late, early = Waiting(5), Waiting(1)
    world.polls.park(ONE, late)
    world.polls.park(OTHER, early)
    world.polls.expire(1)
    assert world.resumed == [(OTHER, early, False)]
    world.polls.expire(4.9)
    assert len(world.resumed) == len(world.polls) == 1
    world.polls.expire(5)
    assert world.resumed[1:] == [(ONE, late, False)]
    assert len(world.polls) == 0


def test_long_polls_arrival_during_expiry_resumes_the_other_waiters() -> None:
    """A response reads, a read dispatches, and what arrives resumes other waiters."""
    taken: list[tuple[Waiting, bool]] = []

    def resume(key: QueueKey, waiter: Waiting, may_wait: bool) -> None:
        taken.append((waiter, may_wait))
        polls.arrived(OTHER)
        polls.arrived(key)

    polls = LongPolls[Waiting](10, resume)
    other = Waiting(9)
    polls.park(ONE, Waiting(1))
    polls.park(ONE, Waiting(1))
    polls.park(OTHER, other)
    polls.expire(1)
    assert len(taken) == 3
    assert (other, True) in taken
    assert len(polls) == 0


def test_long_polls_waiters_of_a_closed_connection_are_dropped_at_expiry() -> None:
    world, peer = Polls(), RecordingPeer()
    world.polls.park(ONE, Waiting(9, peer))
    world.polls.park(ONE, Waiting(9))
    assert world.polls.of_peer(peer) == 1
    peer.close()
    world.polls.expire(1)
    assert world.resumed == []
    assert len(world.polls) == 1
    assert world.polls.of_peer(peer) == 0
