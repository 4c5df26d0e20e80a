"""Forged registrations of brokers at a NameServer."""

import json
import struct
import zlib

import pytest
from live import Live

from tianzhou.wire.registration import encode_compressed
from tianzhou.wire.tables import RegisterBrokerBody, TopicConfig, TopicConfigTable

IDENTITY = {
    "brokerName": "forger",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "Forgers",
    "brokerId": "0",
    "haServerAddr": "127.0.0.1:2",
    "compressed": "true",
    "bodyCrc32": "0",
}
VERSION_JSON = json.dumps({"counter": 1, "timestamp": 1, "stateVersion": 0}).encode()


EMPTY = encode_compressed(RegisterBrokerBody(), 400)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


FORGED = {
    "bomb": zlib.compress(bytes(300 * 2**20), 9),
    "small-bomb": zlib.compress(bytes(10**6), 9),
    "version-overlong": zlib.compress(struct.pack(">i", 2**31 - 1)),
    "version-negative": zlib.compress(struct.pack(">i", -1) + bytes(40)),
    "count-overlong": zlib.compress(sized(VERSION_JSON) + struct.pack(">i", 2**31 - 1)),
    "count-negative": zlib.compress(sized(VERSION_JSON) + struct.pack(">i", -5)),
    "line-overlong": zlib.compress(sized(VERSION_JSON) + struct.pack(">ii", 1, 2**30)),
    "line-unreadable": zlib.compress(
        sized(VERSION_JSON) + struct.pack(">i", 1) + sized(b"T x y z w") + sized(b"[]")
    ),
    "digits": zlib.compress(
        sized(VERSION_JSON)
        + struct.pack(">i", 1)
        + sized(b"T " + 5_000 * b"9" + b" 4 6 S")
        + sized(b"[]")
    ),
    "half": EMPTY[:-3],
    "trailing": zlib.compress(zlib.decompress(EMPTY) + b"xxxx"),
    "not-zlib": bytes(range(256)),
    "json-deep": b'{"a":' * 50_000,
    "json-type": b'{"topicConfigSerializeWrapper":[1]}',
}


@pytest.mark.parametrize("name", FORGED)
def test_s12_forged_registration_is_rejected(live: Live, name: str) -> None:
    before = live.rss_bytes()
    with live.to_nameserver() as client:
        response = client.ask(103, IDENTITY, FORGED[name])
        assert response.code == 1, response
        assert response.remark
        assert b"Forgers" not in client.ask(106).body
    assert live.rss_bytes() - before < 80 * 2**20


def test_s12_topic_with_numbers_that_clients_cannot_use_gets_no_route(live: Live) -> None:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=4, perm=perm)
        for name, queues, perm in (
            ("A", 10**9, 6),
            ("B", -1, 6),
            ("C", 4, 99),
            ("D", 4, 6),
            ("E", 4, 6),
        )
    }
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=topics)
    )
    with live.to_nameserver() as client:
        assert client.ask(103, IDENTITY, encode_compressed(body, 400)).code == 0
        known = json.loads(client.ask(206).body)["topicList"]
        client.ask(104, IDENTITY)
    assert not {"A", "B", "C"} & set(known)
    assert "D" in known


def test_s12_closed_connection_removes_its_brokers(live: Live) -> None:
    with live.to_nameserver() as client:
        assert client.ask(103, IDENTITY, EMPTY).code == 0
    with live.to_nameserver() as client:
        for _ in range(1_000):
            if b"Forgers" not in client.ask(106).body:
                return
    raise AssertionError("the broker is still registered")
