"""A topic gets more queues while our consumer and RocketMQ's C++ client share a group."""

import pytest

from clients.cpp_client import Clients
from clients.server_process import ServerProcess
from clients.test_consumer_cpp import (
    Received,
    assigned_count,
    bodies_of,
    consuming,
    numbered,
    send_all,
)
from clients.waiting import wait_until
from tianzhou.client.sync import Admin

SHARE_S = 30.0
POLL_S = 30.0
"""How often the C++ client refreshes its routes; it ignores the topics that a notice names."""


@pytest.mark.slow
def test_group_with_a_cpp_member_consumes_new_queues(
    server: ServerProcess, clients: Clients
) -> None:
    topic, group = "cpp-grows", "cpp-grows-readers"
    ours = Received()
    with Admin(nameserver=server.nameserver) as admin:
        admin.topics.create(topic, queues=4)
        with consuming(server, group, topic, ours) as consumer:
            theirs = clients.push(group, topic)
            wait_until(
                lambda: assigned_count(consumer, topic) == 2,
                within_s=SHARE_S,
                what="two queues for each member",
            )
            admin.topics.update(topic, read_queues=8, write_queues=8)
            wait_until(
                lambda: assigned_count(consumer, topic) == 4,
                within_s=SHARE_S,
                what="half of the new queues, which our consumer notices at once",
            )
            send_all(server, topic, numbered(80))
            # The other half is consumed once the C++ client has refreshed its route.
            wait_until(
                lambda: {*ours.bodies(), *bodies_of(theirs.lines("got"))} == {*numbered(80)},
                within_s=2 * POLL_S,
                what="80 messages for both",
            )
            assert theirs.lines("got")
            theirs.close()
