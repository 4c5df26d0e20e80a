"""Draining a broker: producers learn of it from the broker and from the route."""

import json
import subprocess
import sys
from pathlib import Path

from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.names import PERM_READ, PERM_WRITE
from tianzhou.wire.routes import TopicRouteData, decode_route

TIANZHOU = str(Path(sys.executable).with_name("tianzhou"))
SEND = {
    "a": "group",
    "b": "Drained",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01A\x02",
}


def route(nameserver: str) -> TopicRouteData:
    with BlockingPeer(nameserver) as peer:
        answer, body = peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Drained"})
    assert answer.code == 0, answer.remark
    return decode_route(body)


def writable(nameserver: str) -> bool:
    return all(queues.perm & PERM_WRITE for queues in route(nameserver).queue_datas)


def wait_until_writable(mq: RunningBroker, expected: bool) -> None:
    mq.wait_until(lambda: writable(mq.nameserver) is expected, within_s=10, what="the route")


def drain(nameserver: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [TIANZHOU, "broker", "drain", "broker-a", "-n", nameserver, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_drained_broker_loses_its_writers_until_the_drain_is_undone(mq: RunningBroker) -> None:
    nameserver = mq.nameserver
    with BlockingPeer(mq.broker) as peer:
        assert peer.call(RequestCode.SEND_MESSAGE_V2, SEND, b"one")[0].code == 0
        wait_until_writable(mq, True)

        done = drain(nameserver)
        assert done.returncode == 0, done.stderr
        assert "safe to stop broker-a" in done.stdout
        wait_until_writable(mq, False)
        assert all(queues.perm & PERM_READ for queues in route(nameserver).queue_datas)
        refused, _ = peer.call(RequestCode.SEND_MESSAGE_V2, SEND, b"two")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "drained" in (refused.remark or "")

        assert drain(nameserver, "--undo").returncode == 0
        wait_until_writable(mq, True)
        assert peer.call(RequestCode.SEND_MESSAGE_V2, SEND, b"three")[0].code == 0


def test_drained_broker_with_unread_messages_is_not_safe_to_stop(mq: RunningBroker) -> None:
    with BlockingPeer(mq.broker) as peer:
        assert peer.call(RequestCode.SEND_MESSAGE_V2, SEND, b"unread")[0].code == 0
        ext = {"consumerGroup": "slow", "topic": "Drained", "queueId": "0", "commitOffset": "0"}
        assert peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)[0].code == 0
        late = drain(mq.nameserver, "--timeout", "1")
        assert late.returncode == 1
        assert "broker-a is not drained after 1 s: group slow has 1 messages left" in late.stderr
        assert "--undo" in late.stderr
        as_json = drain(mq.nameserver, "--timeout", "0", "--json")
        assert json.loads(as_json.stdout)["unread"] == {"slow": 1}
        assert json.loads(as_json.stderr)["error"]["exit_code"] == 1
        ext["commitOffset"] = "1"
        assert peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)[0].code == 0
        assert drain(mq.nameserver).returncode == 0


def test_drain_of_an_unknown_broker_lists_the_known_ones(mq: RunningBroker) -> None:
    command = [TIANZHOU, "broker", "drain", "broker-z", "-n", mq.nameserver]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 4
    assert "no broker broker-z" in done.stderr
    assert "it knows: broker-a" in done.stderr
