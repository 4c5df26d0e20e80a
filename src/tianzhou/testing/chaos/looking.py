"""Inspect a running broker through its port: the length of its log, the messages of its queues, the
offsets of groups. All requests are read-only."""

import json
from collections.abc import Iterator
from typing import Final

from tianzhou.net.blocking import BlockingPeer, Unreachable
from tianzhou.record.message import MessageView, decode_all
from tianzhou.testing.chaos.history import Place, Queue
from tianzhou.testing.chaos.values import value_in
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.replication_bodies import decode_replication_view
from tianzhou.wire.routes import decode_cluster_table

MASTER: Final = MASTER_ID
GROUP: Final = "chaos-auditors"
PULL_COUNT: Final = 1024
_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


def runtime(address: str) -> dict[str, str]:
    """Return the runtime info of a broker. Raises Unreachable."""
    with BlockingPeer(address) as peer:
        answer, body = peer.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:
            raise Unreachable(f"{address} rejected the request for its state: {answer.remark}")
    return json.loads(body)["table"]


def log_end(address: str) -> int:
    return int(runtime(address)["commitLogMaxOffset"])


def slaves_in_sync(address: str) -> int:
    """Return how many slaves of this master are in sync."""
    with BlockingPeer(address) as peer:
        answer, body = peer.call(RequestCode.VIEW_REPLICATION)
    if answer.code != ResponseCode.SUCCESS:
        return 0
    return sum(slave.is_in_sync for slave in decode_replication_view(body).slaves)


def waiting(address: str) -> int:
    """Count the pending messages of a master: timed, delayed and half messages."""
    total = 0
    with BlockingPeer(address) as peer:
        for code in (RequestCode.LIST_TIMERS, RequestCode.LIST_HALF_MESSAGES):
            answer, body = peer.call(code, {"count": "1"})
            if answer.code != ResponseCode.SUCCESS:
                raise Unreachable(
                    f"{address} rejected the request for pending ones: {answer.remark}"
                )
            total += json.loads(body)["total"]
    for key, value in runtime(address).items():
        if key.startswith("scheduleMessageOffset_"):
            done, end = map(int, value.split(","))
            total += end - done
    return total


def scan(address: str, broker: str, topic: str, queue_count: int) -> dict[Place, str]:
    """Return the value of every visible message of a topic on this broker, by offset."""
    return {
        Place(Queue(broker, view.queue_id), view.queue_offset): value_in(view.body)
        for view in shown(address, topic, queue_count)
    }


def shown(address: str, topic: str, queue_count: int) -> Iterator[MessageView]:
    """Yield every visible message of a topic on this broker, queue by queue."""
    with BlockingPeer(address) as peer:
        for queue_id in range(queue_count):
            yield from _shown(peer, topic, queue_id)


def _shown(peer: BlockingPeer, topic: str, queue_id: int) -> Iterator[MessageView]:
    at = 0
    while True:
        answer, body = peer.call(RequestCode.PULL_MESSAGE, _pull(topic, queue_id, at))
        if answer.code in _NOTHING:
            first = int(answer.ext.get("minOffset", 0))
            if first <= at:
                return
            at = first  # retention removed the messages before it
            continue
        place = f"queue {queue_id} at {at}"
        assert answer.code == ResponseCode.SUCCESS, f"{place}: {answer}"
        for view in decode_all(body):
            assert (view.queue_id, view.queue_offset) == (queue_id, at), f"{place}: {view}"
            yield view
            at += 1


def _pull(topic: str, queue_id: int, offset: int) -> dict[str, str]:
    return {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(PULL_COUNT),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def committed(address: str, group: str, topic: str, queue_id: int) -> int | None:
    """Return the committed offset of a group on this broker."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    with BlockingPeer(address) as peer:
        answer, _ = peer.call(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None


def masters(nameserver: str) -> dict[str, str]:
    """Return the address of the master of each group, from the NameServer."""
    with BlockingPeer(nameserver) as peer:
        answer, body = peer.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer.code != ResponseCode.SUCCESS:
            raise Unreachable(f"{nameserver} rejected the request for its brokers: {answer.remark}")
    table = decode_cluster_table(body).broker_addr_table
    return {
        name: data.broker_addrs[MASTER]
        for name, data in table.items()
        if MASTER in data.broker_addrs
    }
