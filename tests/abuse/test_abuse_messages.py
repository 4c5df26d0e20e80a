"""Messages that are too large, malformed or hostile, and how the broker handles them."""

import zlib

import pytest
from live import Live
from raw_client import (
    UNIQUE,
    RawClient,
    Response,
    batch_entry,
    pull_of,
    send_v1,
    send_v2,
)

from tianzhou.base.errors import UsageError
from tianzhou.record import properties
from tianzhou.record.batch import encode_batch
from tianzhou.record.message import decode_all

SUCCESS, SYSTEM_ERROR, ILLEGAL, NO_PERMISSION, INVALID = 0, 1, 13, 16, 29


def send(
    client: RawClient, way: str, topic: str, body: bytes = b"x", text: str = UNIQUE
) -> Response:
    """Send a message with one of the request kinds in `WAYS`."""
    match way:
        case "v1":
            return client.ask(10, send_v1(topic, properties=text), body)
        case "v2":
            return client.ask(310, send_v2(topic, properties=text), body)
        case "binary":
            return client.ask(310, send_v2(topic, properties=text), body, binary=True)
        case _:
            return client.ask(320, send_v2(topic, m="true"), batch_entry(body, text.encode()))


WAYS = ("v1", "v2", "binary", "batch")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_known", [False, True], ids=["new-topic", "known-topic"])
def test_s10_send_with_a_too_large_body_or_properties_is_rejected(
    live: Live, way: str, is_known: bool
) -> None:
    topic = "LargeKnown" if is_known else f"Large{way}"
    with live.to_broker() as client:
        if is_known:
            assert send(client, "v2", topic).code == SUCCESS
        response = send(client, way, topic, bytes(4 * 2**20 + 1))
        assert response.code == ILLEGAL, response
        assert "4194304" in response.remark
        response = send(client, way, topic, b"x", UNIQUE + "a\x01" + 32_700 * "b" + "\x02")
        assert response.code == ILLEGAL, response
        assert send(client, way, topic).code == SUCCESS


@pytest.mark.parametrize("total", [-1, 0, 21, 24, 2**31 - 1])
def test_s10_batch_with_wrong_sizes_inside_is_rejected_as_a_whole(live: Live, total: int) -> None:
    with live.to_broker() as client:
        ext = send_v2("Batches", m="true")
        good = batch_entry(b"good")
        response = client.ask(320, ext, good + batch_entry(b"x", total=total))
        assert response.code == ILLEGAL, response
        assert client.ask(320, ext, good[:-1]).code == ILLEGAL
        assert client.ask(320, ext, b"").code == ILLEGAL
        # All or nothing: the valid message before the invalid one is not stored.
        assert client.ask(30, {"topic": "Batches", "queueId": "0"}).header.ext["offset"] == "0"


def test_s10_batch_of_ten_thousand_messages_is_stored(live: Live) -> None:
    with live.to_broker() as client:
        body = batch_entry(b"x") * 10_000
        assert client.ask(320, send_v2("ManyInABatch", m="true"), body).code == SUCCESS


@pytest.mark.parametrize("way", WAYS)
def test_s11_compressed_bodies_are_never_inflated(live: Live, way: str) -> None:
    bomb, topic = zlib.compress(bytes(64 * 2**20), 9), f"Bomb{way}"
    before = live.rss_bytes()
    with live.to_broker() as client:
        sent = client.ask(
            10 if way == "v1" else 310,
            send_v1(topic, sysFlag="1") if way == "v1" else send_v2(topic, f="1"),
            bomb,
            binary=way == "binary",
        )
        assert sent.code == SUCCESS
        found = client.ask(11, pull_of(topic, sysFlag="6"))
        (message,) = decode_all(found.body)
        assert bytes(message.stored_body) == bomb
    assert live.rss_bytes() - before < 20 * 2**20


SYSTEM_TOPICS = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_wheel_timer",
    "OFFSET_MOVED_EVENT",
    "SELF_TEST_TOPIC",
    "rmq_sys_raft_metadata",
    "rmq_sys_of_the_future",
)


@pytest.mark.parametrize("topic", SYSTEM_TOPICS)
@pytest.mark.parametrize("way", WAYS)
def test_s15_send_to_a_system_topic_is_rejected(live: Live, way: str, topic: str) -> None:
    with live.to_broker() as client:
        response = send(client, way, topic)
        assert response.code == NO_PERMISSION, response
        assert client.ask(215, {"topic": topic}).code == INVALID


def test_s15_replies_and_batches_to_a_system_topic_are_rejected(live: Live) -> None:
    """A record in this topic makes all members of a Raft group delete topics."""
    ext = send_v2("rmq_sys_raft_metadata")
    with live.to_broker() as client:
        assert client.ask(325, ext, b"x").code == NO_PERMISSION
        inside = encode_batch([(0, b"x", b"")])
        assert client.ask(320, ext | {"m": "true"}, inside).code == NO_PERMISSION


OWN_PROGRESS = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": "0"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (15, OWN_PROGRESS | {"consumerGroup": "CID_RMQ_SYS_TRANS", "commitOffset": "1"}),
        (11, pull_of(OWN_PROGRESS["topic"], consumerGroup="CID_RMQ_SYS_TRANS", sysFlag="5")),
        (222, OWN_PROGRESS | {"group": "CID_RMQ_SYS_TRANS", "timestamp": "-1", "isForce": "true"}),
        (314, {"srcGroup": "thief", "destGroup": "CID_RMQ_SYS_TRANS", "offline": "true"}),
    ],
)
def test_s15_offset_of_the_transaction_group_cannot_be_changed(
    live: Live, code: int, ext: dict[str, str]
) -> None:
    """Half messages below this offset count as decided at the next start, and would be lost."""
    with live.to_broker() as client:
        assert client.ask(code, ext).code == NO_PERMISSION


@pytest.mark.parametrize("way", WAYS)
def test_s18_message_with_too_many_keys_is_rejected(live: Live, way: str) -> None:
    with live.to_broker() as client:
        assert send(client, "v2", "Keys").code == SUCCESS
        for count, code in ((65, ILLEGAL), (10_000, ILLEGAL), (64, SUCCESS)):
            response = send(
                client, way, "Keys", b"x", UNIQUE + "KEYS\x01" + " ".join(count * "k") + "\x02"
            )
            assert response.code == code, (count, response)


SEPARATORS = {
    "name-end": "a\x01b\x01c\x02",
    "value-end": "a\x01b\x02c\x02",
    "no-value": "a\x02",
    "no-end": "a",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SEPARATORS)
def test_s18_send_with_a_separator_inside_a_property_is_rejected(
    live: Live, way: str, kind: str
) -> None:
    """Different implementations would read such a message differently."""
    topic, text = f"Separators-{way}-{kind}", SEPARATORS[kind]
    with live.to_broker() as client:
        assert send(client, "v2", topic).code == SUCCESS
        assert send(client, way, topic, b"x", UNIQUE + text).code == ILLEGAL
        assert client.ask(325, send_v2(topic, i=UNIQUE + text), b"x").code == ILLEGAL
        inside = encode_batch([(0, b"good", b""), (0, b"bad", text.encode())])
        assert client.ask(320, send_v2(topic, m="true"), inside).code == ILLEGAL
        assert client.ask(30, {"topic": topic, "queueId": "0"}).header.ext["offset"] == "1"


def test_s18_stored_separators_never_yield_another_property() -> None:
    r"""Other programs may have stored such bytes: an entry ends at the next \x02, its name at the
    first \x01. Our encoder rejects names and values that would be read differently."""
    for name, value in (("a\x01b", "c"), ("a\x02b", "c"), ("a", "b\x01c"), ("a", "b\x02c\x01d")):
        with pytest.raises(UsageError):
            properties.encode({name: value})
    read = properties.decode(b"a\x01b\x01c\x02\x02\x01d\x02e\x01\x02f")
    assert read["a"] == "b\x01c"
    assert not {"", "d", "e", "f"} & read.keys()
