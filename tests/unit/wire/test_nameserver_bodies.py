"""What a NameServer tells of brokers that are not there."""

import pytest

from tianzhou.wire import fastjson
from tianzhou.wire.errors import BodyError
from tianzhou.wire.nameserver_bodies import (
    MissingBroker,
    MissingTopic,
    NameServerView,
    RefusedBroker,
    decode_nameserver_view,
)

LOOK = NameServerView(
    missing=(
        MissingBroker(
            address="h:1",
            broker_id=1,
            cluster="c",
            groups=("g",),
            left_out=3,
            name="broker-a",
            reason="expired",
            since_ms=5,
            topics=(MissingTopic(name="t", read_queues=1, write_queues=2),),
        ),
    ),
    now_ms=9,
    refused=(RefusedBroker(address="h:2", kind="name_taken", name="b", peer="p:1", reason="r"),),
    version="1",
)


def test_nameserver_view_round_trips() -> None:
    assert decode_nameserver_view(fastjson.encode(LOOK)) == LOOK


def test_nameserver_view_that_is_invalid_is_a_body_error() -> None:
    data = fastjson.encode(LOOK)
    for end in range(len(data)):
        with pytest.raises(BodyError):
            decode_nameserver_view(data[:end])
