"""Invalid names in every kind of request, and numbers that are out of range."""

import json
from functools import partial
from pathlib import Path

import pytest
from live import Live
from raw_client import (
    UNIQUE,
    RawClient,
    Response,
    batch_entry,
    heartbeat_of,
    pull_of,
    send_v1,
    send_v2,
)

from clients.waiting import wait_until
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.store.consume_queue import Queues
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import RealFiles
from tianzhou.testing.kit.stopwatch import Stopwatch
from tianzhou.wire.registration import encode_registration
from tianzhou.wire.tables import RegisterBrokerBody, TopicConfig, TopicConfigTable

ILLEGAL = 13
INVALID = 29
BAD = {
    "empty": "",
    "slash": "a/b",
    "up": "../x",
    "dots": "..",
    "dot": ".",
    "blank": "a b",
    "new-line": "a\n",
    "nul": "a\x00b",
    "accent": "é",
    "digit-of-others": "a\u0661",
    "absolute": "/etc/passwd",
    "long": 128 * "x",
    "long-retry": "%RETRY%" + 249 * "x",
}
GOOD = "GoodName"


def create_of(topic: str) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }


def offset_of(group: str, topic: str, queue_id: int = 0, offset: int = 0) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }


def send_back_of(group: str) -> dict[str, str]:
    return {
        "offset": "0",
        "group": group,
        "delayLevel": "0",
        "originMsgId": "x",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }


def send_name(client: RawClient, entrance: str, name: str) -> Response:
    match entrance:
        case "send-v1":
            return client.ask(10, send_v1(name), b"x")
        case "send-v2":
            return client.ask(310, send_v2(name), b"x")
        case "send-binary":
            return client.ask(310, send_v2(name), b"x", binary=True)
        case "send-batch":
            return client.ask(320, send_v2(name, m="true"), batch_entry(b"x"))
        case "create":
            return client.ask(17, create_of(name))
        case "create-list":
            rows = [{"topicName": GOOD}, {"topicName": name}]
            return client.ask(18, {}, json.dumps({"topicConfigList": rows}).encode())
        case "delete":
            return client.ask(215, {"topic": name})
        case "pull-topic":
            return client.ask(11, pull_of(name))
        case "offset-topic":
            return client.ask(15, offset_of("g", name))
        case _:
            return send_group_name(client, entrance, name)


def send_group_name(client: RawClient, entrance: str, name: str) -> Response:
    match entrance:
        case "pull-group":
            return client.ask(11, pull_of("Witness", consumerGroup=name))
        case "pull-binary":
            return client.ask(11, pull_of("Witness", consumerGroup=name), binary=True)
        case "offset-group":
            return client.ask(15, offset_of(name, "Witness"))
        case "send-back":
            return client.ask(36, send_back_of(name))
        case "group":
            return client.ask(200, {}, json.dumps({"groupName": name}).encode())
        case "delete-group":
            return client.ask(207, {"groupName": name, "cleanOffset": "true"})
        case "heartbeat":
            body = heartbeat_of(producers=(name, GOOD), consumers=(name,))
            return client.ask(34, {}, body)
        case _:
            raise AssertionError(entrance)


# Where an unknown name is not an error of its own, the request finds nothing. A heartbeat counts
# for those of its names that are valid.
ENTRANCES = {
    "send-v1": (INVALID,),
    "send-v2": (INVALID,),
    "send-binary": (INVALID,),
    "send-batch": (INVALID,),
    "create": (INVALID,),
    "create-list": (INVALID,),
    "delete": (INVALID,),
    "pull-topic": (17,),
    "offset-topic": (17,),
    "pull-group": (INVALID,),
    "pull-binary": (INVALID,),
    "offset-group": (INVALID,),
    "send-back": (INVALID,),
    "group": (INVALID,),
    "delete-group": (INVALID,),
    "heartbeat": (0,),
}


def files_of(live: Live) -> set[Path]:
    return {path for path in live.data.parent.rglob("*") if "hypothesis" not in path.name}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", BAD)
def test_s13_invalid_name_in_a_request_is_rejected(live: Live, entrance: str, name: str) -> None:
    with live.to_broker() as client:
        assert send_name(client, entrance, BAD[name]).code in ENTRANCES[entrance]
        topics = json.loads(client.ask(21).body)["topicConfigTable"]
        groups = json.loads(client.ask(201).body)["subscriptionGroupTable"]
    for known in (*topics, *groups):
        assert known.isascii()
        assert not set(known) & set("./ \n\x00")
        assert BAD[name] not in (known, known.removeprefix("%RETRY%")) or not known


@pytest.mark.parametrize("name", BAD)
def test_s13_invalid_name_at_the_nameserver_is_rejected(live: Live, name: str) -> None:
    bad = BAD[name]
    identity = {
        "brokerName": "abuser",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "Abusers",
        "brokerId": "0",
        "haServerAddr": "127.0.0.1:2",
        "compressed": "false",
        "bodyCrc32": "0",
    }
    body = encode_registration(
        RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigTable(
                topic_config_table={bad: TopicConfig(topic_name=bad)}
            )
        )
    )
    with live.to_nameserver() as client:
        assert client.ask(103, identity, body).code == 0  # invalid topics are skipped
        for field in ("brokerName", "clusterName"):
            if name not in ("dot", "dots", "long", "long-retry"):
                assert client.ask(103, identity | {field: bad}, body).code != 0
        assert client.ask(217, {"topic": bad}, b'{"queueDatas":[]}').code == INVALID
        known = json.loads(client.ask(206).body)["topicList"]
        client.ask(104, identity)
    assert bad not in known


@pytest.mark.parametrize(
    "name", ["../x", "../../x", "/tmp/x", "..", "a/../../x", "%2e%2e/x", "a\\b"]
)
def test_s14_name_with_a_path_creates_no_file_outside_the_store(live: Live, name: str) -> None:
    before = {path for path in files_of(live) if live.data not in path.parents}
    with live.to_broker() as client:
        for entrance in ENTRANCES:
            send_name(client, entrance, name)
        client.ask(
            12,
            {
                "topic": name,
                "key": name,
                "maxNum": "9",
                "beginTimestamp": "0",
                "endTimestamp": "9999999999999",
            },
        )
        for code in (29, 30, 31, 32, 202, 351):
            client.ask(code, {"topic": name, "queueId": "0", "timestamp": "0"})
    assert {path for path in files_of(live) if live.data not in path.parents} == before
    assert not [path for path in files_of(live) if path.name == "x"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/../../x", "/x", "a\0b"])
def test_s14_store_rejects_a_queue_name_with_a_path(tmp_path: Path, name: str) -> None:
    """The second line of defence, should an invalid name pass the check of names."""
    queues = Queues(RealFiles(), str(tmp_path / "consumequeue"), 100)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreDamaged, match="is not a valid directory name"):
        queues.obtain(queue_key(name, 0)).append(QueueOffset(0), bytes(20))
    assert sorted(tmp_path.rglob("*")) == before


def test_s14_store_never_follows_symbolic_links(tmp_path: Path) -> None:
    outside, link = tmp_path / "outside", tmp_path / "link"
    outside.write_bytes(b"untouched")
    link.symlink_to(outside)
    files = RealFiles()
    for act in (files.open, files.lock, partial(files.create, size=1)):
        with pytest.raises(OSError, match="symbolic link"):
            act(str(link))
    assert outside.read_bytes() == b"untouched"


# Out of range

PULLS = {
    "queueId": ("-1", "4", "2147483647"),
    "queueOffset": ("-1", "-9223372036854775808", "9223372036854775807"),
    "maxMsgNums": ("-1", "0", "1000000000", "-2147483648"),
    "maxMsgBytes": ("-1", "0", "2147483647", "-2147483648"),
    "suspendTimeoutMillis": ("-1", "1000000000", "9223372036854775807"),
    "commitOffset": ("-5", "9223372036854775807"),
    "sysFlag": ("-1", "2147483647", "-2147483648", "16"),
}
UNPARSABLE = ("9223372036854775808", "99999999999999999999", 4_301 * "9", "1.5", "x", "", " 1", "٣")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("field", PULLS)
def test_s16_pull_with_a_number_out_of_range_gets_a_response(
    live: Live, field: str, binary: bool
) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Ranges"), b"x")
        for value in PULLS[field]:
            response = client.ask(11, pull_of("Ranges") | {field: value}, binary=binary)
            expected = {"queueId": (INVALID,), "queueOffset": (0, 21), "sysFlag": (0, 24)}
            assert response.code in expected.get(field, (0,)), (value, response)
        for value in UNPARSABLE:
            response = client.ask(11, pull_of("Ranges") | {field: value}, binary=binary)
            assert response.code in (INVALID, 0), (value, response)


def test_s16_pull_waits_for_a_minute_at_most() -> None:
    from tianzhou.broker.fetch.pull import SUSPEND_MS_MAX

    assert SUSPEND_MS_MAX == 60_000


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (310, send_v2("Ranges", queue_id=4), INVALID),
        (310, send_v2("Ranges", queue_id=2**31 - 1), INVALID),
        (310, send_v2("Ranges", queue_id=-(2**31)), 0),
        (10, send_v1("Ranges", queue_id=-1), 0),
        (310, send_v2("Ranges", g="9" * 30), INVALID),
        (310, send_v2("Ranges", f="x"), INVALID),
        (310, send_v2("NewOne", d="1000000000"), 0),
        (310, send_v2("AnotherOne", d="-7"), 0),
        (15, offset_of("g", "Offsets", queue_id=77_777), INVALID),
        (15, offset_of("g", "Offsets", queue_id=-1), INVALID),
        (15, offset_of("g", "Offsets", offset=-3), INVALID),
        (15, offset_of("g", "Offsets", offset=2**62), INVALID),
        (15, offset_of("g", "Offsets", queue_id=3, offset=1), INVALID),
        (15, offset_of("g", "Offsets", queue_id=3, offset=0), 0),
        (14, {"consumerGroup": "g", "topic": "Ranges", "queueId": "-1"}, 0),
        (30, {"topic": "Ranges", "queueId": "-1"}, 0),
        (29, {"topic": "Ranges", "queueId": "99", "timestamp": "-9223372036854775808"}, 0),
        (
            37,
            {
                "producerGroup": "g",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": "64",
                "msgId": "m",
            },
            INVALID,
        ),
        (33, {"offset": "-1"}, 1),
        (33, {"offset": "1"}, 1),
        (33, {"offset": "9223372036854775807"}, 1),
        (321, {"topic": "Ranges", "queueId": "0", "index": "-9", "count": "2147483647"}, 0),
        (17, create_of("Wide") | {"readQueueNums": "1025"}, INVALID),
        (17, create_of("Wide") | {"writeQueueNums": "1000000"}, INVALID),
        (17, create_of("Wide") | {"writeQueueNums": "-1"}, INVALID),
        (17, create_of("Wide") | {"perm": "99"}, INVALID),
    ],
)
def test_s16_request_with_a_number_out_of_range_gets_the_expected_code(
    live: Live, code: int, ext: dict[str, str], expected: int
) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Ranges"), b"x")
        # A separate topic: sends without a queue id go to any queue of the first one.
        client.ask(310, send_v2("Offsets"), b"x")
        response = client.ask(code, ext, b"x" if code in (10, 310) else b"")
        assert response.code == expected, response
        if expected == 0 and code == 310 and "d" in ext and ext["b"] != "Ranges":
            created = json.loads(client.ask(351, {"topic": ext["b"]}).body)
            assert 1 <= created["writeQueueNums"] <= 8


def test_s17_storm_of_new_topics_and_groups_stalls_no_client(live: Live) -> None:
    """Creating a topic writes to the disk. The witness must be served in between, and queues
    without messages get no file."""
    from raw_client import request

    with live.to_broker() as client:
        asked = [request(310, send_v2(f"Storm{n:03}"), b"x") for n in range(150)]
        client.send(b"".join(data for _, data in asked))
        responses = [client.receive() for _ in asked]
        assert [a.header.opaque for a in responses] == [opaque for opaque, _ in asked]
        assert {a.code for a in responses} == {0}
        assert client.ask(17, create_of("StormWide") | {"readQueueNums": "1024"}).code == 0
        body = heartbeat_of(consumers=tuple(f"storm{n}" for n in range(1_000)))
        watch = Stopwatch(live.pid)
        assert client.ask(34, {}, body).code == 0
        assert watch.seconds() < 2
        too_many = heartbeat_of(consumers=tuple(f"flood{n}" for n in range(1_025)))
        assert client.ask(34, {}, too_many).code == INVALID
        assert client.ask(34, {}, heartbeat_of(client="x" * 2**20)).code == INVALID
    assert not (live.data / "consumequeue" / "StormWide").exists()


def test_s17_flood_of_light_queues_ends_at_their_limit(live: Live) -> None:
    """Neither sends, nor delayed messages, nor commits of offsets create more than that."""
    on = b"enableLmq=true\nenableMultiDispatch=true\nmaxLmqConsumeQueueNum=1000\n"

    def naming(first: int, count: int = 128, more: str = "") -> str:
        names = ",".join(f"%LMQ%flood{number}" for number in range(first, first + count))
        return f"{UNIQUE}INNER_MULTI_DISPATCH\x01{names}\x02{more}"

    with live.to_broker() as client:
        assert client.ask(25, {}, on).code == 0
        before, fds = live.heap_bytes(), live.fd_count()
        codes = [
            client.ask(310, send_v2("Light", properties=naming(128 * n)), b"x").code
            for n in range(40)
        ]
        assert codes == [0] * 7 + [1] * 33
        assert client.ask(310, send_v2("Light", properties=naming(0, 129)), b"x").code == ILLEGAL
        for number in range(3):
            later = naming(100_000 + 100 * number, 100, "DELAY\x011\x02")
            assert client.ask(310, send_v2("Light", properties=later), b"x").code == 0
        for number in range(2_000):
            pull = pull_of(f"%LMQ%invented{number}", commitOffset="0") | {"sysFlag": "5"}
            client.ask(11, pull)

        def total() -> int:
            return json.loads(client.ask(90016, {"count": "9999"}).body)["total"]

        wait_until(lambda: total() == 1_000, within_s=20, what="the delayed messages")
        assert live.fd_count() - fds < 300
        assert live.heap_bytes() - before < 32 * 2**20
        client.ask(25, {}, b"enableLmq=false\nenableMultiDispatch=false\n")
