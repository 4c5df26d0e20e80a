"""Administration over real sockets: a broker on a free port, a tool, and a consumer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tianzhou.record import properties
from tianzhou.record.message import decode_all
from tianzhou.testing import RunningBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import RESPONSE_FLAG, Header, decode_header, encode_command
from tianzhou.wire.queues import decode_queue_offsets, decode_topic_stats
from tianzhou.wire.tables import decode_kv_table

pytestmark = pytest.mark.timeout(30)


class Wire:
    """One connection to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    async def receive(self) -> tuple[Header, bytes]:
        size = int.from_bytes(await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        header_size = int.from_bytes(frame[1:4])
        header = decode_header(frame[4 : 4 + header_size], frame[0])
        return header, frame[4 + header_size :]

    def send(self, header: Header, body: bytes = b"") -> None:
        self._writer.write(encode_command(header, body))

    def send_request(self, code: int, body: bytes = b"", /, **ext: str) -> None:
        self._opaque += 1
        self.send(Header(code=code, opaque=self._opaque, ext=ext), body)

    async def ask(self, code: int, body: bytes = b"", /, **ext: str) -> tuple[Header, bytes]:
        self.send_request(code, body, **ext)
        header, answer = await self.receive()
        assert (header.opaque, header.is_response) == (self._opaque, True)
        return header, answer

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def with_broker(mq: RunningBroker, scene: Callable[[Wire, Wire], Awaitable[None]]) -> None:
    """Run a scene with two connections to a broker."""

    async def play() -> None:
        host, _, port = mq.broker.rpartition(":")
        wires = [Wire(*await asyncio.open_connection(host, int(port))) for _ in range(2)]
        try:
            await scene(*wires)
        finally:
            for wire in wires:
                await wire.close()

    asyncio.run(play())


async def make_topic(tool: Wire, name: str) -> None:
    header, _ = await tool.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=name,
        defaultTopic="TBW102",
        readQueueNums="2",
        writeQueueNums="2",
        perm="6",
        topicFilterType="SINGLE_TAG",
        order="false",
    )
    assert header.code == 0, header.remark


async def send(wire: Wire, topic: str, body: bytes) -> Header:
    text = properties.encode({"KEYS": "k", "UNIQ_KEY": "0" * 31 + "1"}).decode()
    fields = SendMessageV2Request(
        producer_group="writers",
        topic=topic,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1,
        flag=0,
        properties=text,
    )
    header, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, body, **fields.to_ext())
    return header


async def join(wire: Wire, group: str, topic: str) -> None:
    heartbeat: dict[str, Any] = {
        "clientID": "reader-1",
        "consumerDataSet": [
            {
                "groupName": group,
                "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
            }
        ],
    }
    wire.send_request(RequestCode.HEART_BEAT, fastjson.encode(heartbeat))
    codes = {(await wire.receive())[0].code for _ in range(2)}
    assert codes == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ResponseCode.SUCCESS}


async def look(tool: Wire, _other: Wire) -> None:
    await make_topic(tool, "orders")
    assert (await send(tool, "orders", b"hello")).code == 0
    _, body = await tool.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
    ends = {q.queue_id: row.max_offset for q, row in decode_topic_stats(body).offset_table.items()}
    assert ends == {0: 1, 1: 0}
    _, body = await tool.ask(
        RequestCode.QUERY_MESSAGE,
        topic="orders",
        key="k",
        maxNum="9",
        beginTimestamp="0",
        endTimestamp=str(1 << 62),
    )
    (message,) = decode_all(body)
    assert message.body == b"hello"
    header, body = await tool.ask(
        RequestCode.VIEW_MESSAGE_BY_ID, offset=str(message.physical_offset)
    )
    assert (header.code, next(decode_all(body)).body) == (0, b"hello")
    _, body = await tool.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert len(decode_kv_table(body).table["putTps"].split()) == 3
    header, _ = await tool.ask(RequestCode.POP_MESSAGE)
    assert header.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "pop" in (header.remark or "")


def test_tool_reads_topics_groups_and_runtime_info(mq: RunningBroker) -> None:
    with_broker(mq, look)


async def drain(tool: Wire, producer: Wire) -> None:
    await make_topic(tool, "orders")
    assert (await send(producer, "orders", b"1")).code == 0
    header, _ = await tool.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4\n")
    assert header.code == 0
    refused = await send(producer, "orders", b"2")
    assert refused.code == ResponseCode.NO_PERMISSION
    header, _ = await tool.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId="0")
    assert header.ext["offset"] == "1"


def test_broker_without_write_permission_rejects_sends(mq: RunningBroker) -> None:
    with_broker(mq, drain)


async def reset(tool: Wire, consumer: Wire) -> None:
    await make_topic(tool, "orders")
    await send(tool, "orders", b"1")
    await join(consumer, "readers", "orders")
    header, body = await tool.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        topic="orders",
        group="readers",
        timestamp="-1",
        isForce="true",
    )
    assert header.code == 0
    expected = {0: 1, 1: 0}
    assert {q.queue_id: o for q, o in decode_queue_offsets(body).items()} == expected
    notification, body = await consumer.receive()
    assert notification.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert notification.is_oneway
    assert {q.queue_id: o for q, o in decode_queue_offsets(body).items()} == expected


def test_reset_notifies_a_connected_consumer(mq: RunningBroker) -> None:
    with_broker(mq, reset)


async def pass_on(tool: Wire, consumer: Wire) -> None:
    await make_topic(tool, "orders")
    await join(consumer, "readers", "orders")
    tool.send_request(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="reader-1"
    )
    question, _ = await consumer.receive()
    assert question.code == RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = Header(code=0, opaque=question.opaque, flag=RESPONSE_FLAG)
    consumer.send(answer, b'{"properties":{"a":"b"}}')
    header, body = await tool.receive()
    assert (header.code, body) == (0, b'{"properties":{"a":"b"}}')
    tool.send_request(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="reader-1"
    )
    await consumer.receive()
    await consumer.close()  # instead of responding
    header, _ = await tool.receive()
    assert header.code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_forwarded_request_gets_a_response_even_if_the_consumer_leaves(
    mq: RunningBroker,
) -> None:
    with_broker(mq, pass_on)
