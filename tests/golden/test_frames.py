"""Frames captured from C++ and Node clients and a Java broker: decoded, compared, re-encoded."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    ConsumerSendMsgBackRequest,
    PullMessageResponse,
    SendMessageRequest,
    SendMessageV2Request,
)
from tianzhou.wire.codec import (
    Header,
    HeaderReader,
    Language,
    decode_header,
    decode_headers,
    encode_command,
    encode_header,
)
from tianzhou.wire.fastjson import encode
from tianzhou.wire.frame import FrameBuffer, SerialiseType, encode_frame
from tianzhou.wire.heartbeat import (
    ConsumeType,
    MessageModel,
    decode_consumer_list,
    decode_heartbeat,
)
from tianzhou.wire.pending import PendingRequests
from tianzhou.wire.queues import decode_lock_batch, decode_locked_queues
from tianzhou.wire.routes import decode_route, encode_routes

SAMPLES = Path(__file__).parent / "samples"
DIGITS = {"true": "1", "false": "0"}
PEERS = {"cpp": "frames-cpp-1.0.1.jsonl", "node": "frames-node-ali-ons.jsonl"}


class Captured(NamedTuple):
    connection: int
    from_client: bool
    plain: dict[str, Any]
    body: bytes
    request_code: RequestCode

    @property
    def header_bytes(self) -> bytes:
        """The header as the peer may have sent it: same keys, order and types."""
        return json.dumps(self.plain, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def is_response(self) -> bool:
        return self.plain["flag"] & 1 == 1


def load(peer: str) -> list[Captured]:
    frames: list[Captured] = []
    asked: dict[tuple[int, bool, int], int] = {}
    for line in (SAMPLES / PEERS[peer]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        plain, from_client = row["h"], row["dir"] == "C>S"
        body = base64.b64decode(row["body_b64"]) if "body_b64" in row else row["body"].encode()
        if plain["flag"] & 1:
            code = asked[row["conn"], not from_client, plain["opaque"]]
        else:
            code = asked[row["conn"], from_client, plain["opaque"]] = plain["code"]
        frames.append(Captured(row["conn"], from_client, plain, body, RequestCode(code)))
    return frames


@pytest.fixture(scope="module", params=PEERS)
def peer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def frames(peer: str) -> list[Captured]:
    return load(peer)


def as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def test_captured_headers_are_decoded(frames: list[Captured]) -> None:
    for frame in frames:
        header = decode_header(frame.header_bytes, SerialiseType.JSON)
        plain = frame.plain
        assert header == Header(
            code=plain["code"],
            opaque=plain["opaque"],
            flag=plain["flag"],
            language=Language[plain["language"]],
            version=plain["version"],
            remark=plain.get("remark"),
            ext={key: as_text(value) for key, value in plain.get("extFields", {}).items()},
        )


@pytest.mark.parametrize("form", SerialiseType)
def test_captured_headers_survive_re_encoding_in_both_forms(
    frames: list[Captured], form: SerialiseType
) -> None:
    for frame in frames:
        header = decode_header(frame.header_bytes, SerialiseType.JSON)
        # The binary form does not distinguish an empty remark from a missing one.
        remark = header.remark or None if form is SerialiseType.BINARY else header.remark
        again = Header(
            code=header.code,
            opaque=header.opaque,
            flag=header.flag,
            language=header.language,
            version=header.version,
            remark=remark,
            ext=header.ext,
            serialise_type=form,
        )
        assert decode_header(encode_header(again), form) == again


def test_our_response_headers_equal_those_of_java() -> None:
    """Only where Java sent fields: we always send them, because some clients fail without them."""
    compared = 0
    for frame in load("cpp") + load("node"):
        if not frame.from_client and "extFields" in frame.plain:
            header = decode_header(frame.header_bytes, SerialiseType.JSON)
            assert encode_header(header) == frame.header_bytes
            compared += 1
    assert compared > 100


def test_frame_buffer_decodes_a_whole_capture(frames: list[Captured]) -> None:
    stream = b"".join(
        encode_frame(frame.header_bytes, frame.body, serialise_type=0) for frame in frames
    )
    buffer = FrameBuffer(capacity=512)
    bodies: list[bytes] = []
    codes: list[int] = []
    at = 0
    while at < len(stream):
        view = buffer.writable()
        piece = stream[at : at + min(97, len(view))]
        view[: len(piece)] = piece
        buffer.wrote(len(piece))
        at += len(piece)
        batch = buffer.take()
        codes += [header.code for header in decode_headers(batch)]
        bodies += [bytes(batch.body(index)) for index in range(batch.count)]
    assert codes == [frame.plain["code"] for frame in frames]
    assert bodies == [frame.body for frame in frames]


def test_captured_responses_match_their_requests(frames: list[Captured]) -> None:
    """The client's side of each captured connection, with our opaques set to its opaques."""
    for number in {frame.connection for frame in frames}:
        connection: PendingRequests[int] = PendingRequests()
        waiting = 0
        for frame in (frame for frame in frames if frame.connection == number):
            header = decode_header(frame.header_bytes, SerialiseType.JSON)
            if frame.from_client and not frame.is_response:
                connection._opaque = header.opaque
                connection.request(header.code, header.ext, token=header.opaque, deadline=1.0)
                waiting += 1
            elif frame.is_response:
                assert connection.answered(header) == header.opaque
                waiting -= 1
        assert connection.pending_count == waiting
        assert connection.unmatched_count == 0


def test_captured_fields_are_decoded_into_types(frames: list[Captured]) -> None:
    for frame in frames:
        header = decode_header(frame.header_bytes, SerialiseType.JSON)
        table = RESPONSE_HEADERS if frame.is_response else REQUEST_HEADERS
        kind = table.get(frame.request_code)
        if kind is None or (frame.is_response and not header.ext):
            continue
        written = kind.from_ext(header.ext).to_ext()
        for key in written.keys() & header.ext.keys():
            # The C++ client writes booleans as digits.
            assert DIGITS.get(written[key], written[key]) == (
                DIGITS.get(header.ext[key], header.ext[key])
            )


def test_captured_sends_use_the_fast_decoder() -> None:
    long, short = HeaderReader(SendMessageRequest), HeaderReader(SendMessageV2Request)
    batches = 0
    for frame in load("cpp"):
        if frame.plain["code"] == RequestCode.SEND_MESSAGE:
            header = long.decode(frame.header_bytes)
            assert header.ext.topic == "TopicCap"
            assert header.ext.born_timestamp_ms > 1_700_000_000_000
            batches += header.ext.batch
    assert batches == sum(
        frame.plain["extFields"].get("batch") == "1"
        for frame in load("cpp")
        if frame.plain["code"] == RequestCode.SEND_MESSAGE
    )
    for frame in load("node"):
        if frame.plain["code"] == RequestCode.SEND_MESSAGE_V2:
            header = short.decode(frame.header_bytes)
            assert (header.ext.producer_group, header.ext.topic) == ("PGJ", "TopicA")
            assert header.ext.queue_id in range(4)


def test_known_captured_frames_have_the_expected_fields() -> None:
    (back,) = [frame for frame in load("node") if frame.plain["code"] == 36]
    ext = decode_header(back.header_bytes, SerialiseType.JSON).ext
    assert ConsumerSendMsgBackRequest.from_ext(ext) == ConsumerSendMsgBackRequest(
        offset=457346106,
        group="CGJ",
        delay_level=0,
        origin_msg_id="7F000001000051AF000000001B428C3A",
        origin_topic="TopicA",
        max_reconsume_times=16,
    )
    nothing = [frame for frame in load("cpp") if frame.plain["code"] == ResponseCode.PULL_NOT_FOUND]
    header = decode_header(nothing[0].header_bytes, SerialiseType.JSON)
    assert header.remark == "OFFSET_OVERFLOW_ONE"
    assert PullMessageResponse.from_ext(header.ext) == PullMessageResponse(
        suggest_which_broker_id=0, next_begin_offset=1, min_offset=0, max_offset=1
    )


def check_route(frame: Captured) -> None:
    route = decode_route(frame.body)
    assert [broker.broker_name for broker in route.broker_datas] == ["broker-a"]
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:30911"}
    assert route.broker_datas[0].cluster == "DefaultCluster"
    assert route.queue_datas[0].read_queue_nums == route.queue_datas[0].write_queue_nums > 0
    assert decode_route(encode_routes(route)) == route


def check_heartbeat(frame: Captured) -> None:
    beat = decode_heartbeat(frame.body)
    plain = json.loads(frame.body)
    assert beat.client_id == plain["clientID"]
    assert [group.group_name for group in beat.producer_data_set] == [
        group["groupName"] for group in plain.get("producerDataSet", [])
    ]
    for group, raw in zip(beat.consumer_data_set, plain.get("consumerDataSet", []), strict=True):
        assert group.consume_type is ConsumeType.CONSUME_PASSIVELY
        assert group.message_model is MessageModel.CLUSTERING
        for data, plain_data in zip(
            group.subscription_data_set, raw["subscriptionDataSet"], strict=True
        ):
            assert (data.topic, data.sub_string) == (plain_data["topic"], plain_data["subString"])
            assert str(data.sub_version) == str(plain_data["subVersion"])
            assert list(data.code_set) == plain_data.get("codeSet", [])
    assert decode_heartbeat(encode(beat)) == beat


def check_consumers(frame: Captured) -> None:
    assert (
        list(decode_consumer_list(frame.body).consumer_id_list)
        == (json.loads(frame.body)["consumerIdList"])
    )


def check_lock(frame: Captured) -> None:
    lock = decode_lock_batch(frame.body)
    assert lock.consumer_group == "CGord"
    assert {queue.broker_name for queue in lock.mq_set} == {"broker-a"}
    assert json.loads(frame.body).items() <= json.loads(encode(lock)).items()


def check_locked(frame: Captured) -> None:
    assert encode(decode_locked_queues(frame.body)) == frame.body


BODIES: dict[tuple[int, bool], Callable[[Captured], None]] = {
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, True): check_route,
    (RequestCode.HEART_BEAT, False): check_heartbeat,
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, True): check_consumers,
    (RequestCode.LOCK_BATCH_MQ, False): check_lock,
    (RequestCode.UNLOCK_BATCH_MQ, False): check_lock,
    (RequestCode.LOCK_BATCH_MQ, True): check_locked,
}
# Bodies of sends and pulls are messages, which other tests cover.
MESSAGES = {
    (RequestCode.SEND_MESSAGE, False),
    (RequestCode.SEND_MESSAGE_V2, False),
    (RequestCode.PULL_MESSAGE, True),
}


def test_captured_bodies_are_decoded(frames: list[Captured]) -> None:
    for frame in frames:
        kind = (frame.request_code, frame.is_response)
        if frame.body and kind not in MESSAGES:
            BODIES[kind](frame)


def test_our_encoded_frame_equals_the_captured_one(frames: list[Captured]) -> None:
    frame = frames[0]
    header = decode_header(frame.header_bytes, SerialiseType.JSON)
    whole = encode_command(header, frame.body)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert json.loads(whole[8:])["extFields"] == header.ext
