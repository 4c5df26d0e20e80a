"""Deliveries to consumers, recorded as responses leave the broker."""

import pytest

from abuse.raw_client import RawClient, pull_of, send_v2
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode

PULL = RequestCode.PULL_MESSAGE


def send(mq: RunningBroker, topic: str, *bodies: bytes) -> None:
    with RawClient(mq.broker) as client:
        for body in bodies:
            assert client.ask(RequestCode.SEND_MESSAGE_V2, send_v2(topic), body).code == 0


def test_deliveries_count_every_delivery_of_a_message(mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2")
    with RawClient(mq.broker) as client, mq.record_deliveries() as given:
        for offset, binary in ((0, False), (1, True), (2, False)):
            client.ask(PULL, pull_of("orders", offset=offset), binary=binary, wait_s=5)
        assert [m.body for m in given.to("abused", "orders")] == [b"1", b"2", b"2"]
        assert given.to("abused", "other") == []
        assert given.to("nobody") == []
        address = "{}:{}".format(*client.socket.getsockname())
        assert {delivery.remote for delivery in given.all()} == {address}
        given.end()
        client.ask(PULL, pull_of("orders"))
    assert len(given.to("abused")) == 3


def test_deliveries_include_pulls_that_waited(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with RawClient(mq.broker) as client, mq.record_deliveries() as given:
        with pytest.raises(TimeoutError):
            client.ask(PULL, pull_of("orders", sysFlag="6"), wait_s=0.05)
        assert given.to("abused") == []
        send(mq, "orders", b"woken")
        assert b"woken" in client.receive().body
        assert [m.body for m in given.to("abused", "orders")] == [b"woken"]


def test_deliveries_exclude_rejected_pulls(mq: RunningBroker) -> None:
    send(mq, "orders", b"1")
    with RawClient(mq.broker) as client, mq.record_deliveries() as given, mq.faults.refuse([PULL]):
        client.ask(PULL, pull_of("orders"))
    assert given.all() == []
