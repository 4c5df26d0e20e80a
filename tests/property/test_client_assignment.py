"""For any number of clients and queues, every queue has exactly one owner."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.core import assignment
from tianzhou.client.core.assignment import Strategy, assign
from tianzhou.wire.queues import MessageQueue

ROOMS = ("bj", "hz", "sh")

clients = st.lists(
    st.tuples(st.sampled_from(ROOMS), st.text("ab12@#", min_size=1, max_size=8)).map("-".join),
    min_size=1,
    max_size=12,
    unique=True,
)
queues = st.lists(
    st.builds(
        MessageQueue,
        topic=st.just("T"),
        broker_name=st.tuples(st.sampled_from(ROOMS), st.sampled_from("abc")).map("@".join),
        queue_id=st.integers(0, 40),
    ),
    max_size=60,
    unique=True,
)
strategies = st.one_of(
    st.just(assignment.average),
    st.just(assignment.circle),
    st.integers(1, 20).map(assignment.consistent_hash),
    st.just(assignment.machine_room(ROOMS)),
    st.sampled_from([assignment.average, assignment.circle]).map(
        lambda within: assignment.machine_room_nearby(
            lambda queue: queue.broker_name.partition("@")[0],
            lambda client: client.partition("-")[0],
            within,
        )
    ),
)


def shares(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> dict[str, list[MessageQueue]]:
    return {
        client: assign(strategy, group="g", client_id=client, queues=queues, clients=clients)
        for client in clients
    }


@given(strategies, queues, clients)
def test_assignment_gives_every_queue_to_one_client(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    owners = Counter(queue for mine in shares(strategy, queues, clients).values() for queue in mine)
    assert owners == Counter(queues)


@given(st.sampled_from([assignment.average, assignment.circle]), queues, clients)
def test_assignment_shares_differ_by_one_at_most(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    sizes = [len(mine) for mine in shares(strategy, queues, clients).values()]
    assert max(sizes) - min(sizes) <= 1


@given(queues, clients, st.integers(0, 11))
def test_assignment_without_a_client_moves_only_its_queues(
    queues: list[MessageQueue], clients: list[str], leaving: int
) -> None:
    """Consistent hashing, unless two nodes collide, which is unlikely with 32 bits."""
    strategy = assignment.consistent_hash()
    gone = clients[leaving % len(clients)]
    rest = [client for client in clients if client != gone]
    before, after = shares(strategy, queues, clients), shares(strategy, queues, rest)
    for client in rest:
        assert set(before[client]) <= set(after[client])
