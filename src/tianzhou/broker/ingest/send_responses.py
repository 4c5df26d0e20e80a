"""Responses to sends, from templates: only ids, queue, offset and opaque number differ."""

from collections.abc import Iterable
from typing import Final

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import TIMER_TOPIC
from tianzhou.broker.writing.durable_reply import CODES, REMARKS
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Stored
from tianzhou.broker.writing.recall_handle import handle_of
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Reply, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.replication.durability import Outcome
from tianzhou.wire.frame import PREFIX
from tianzhou.wire.header import ONEWAY_FLAG, VERSION, Header

IDS_MAX: Final = 4_096
"""Ids in the response to a batch; more would not fit its header."""

Asked = tuple[int, int, int, bytes]
"""Opaque number, queue id and flag of a request, and the unique id of its message, which needs no
escaping in JSON; empty for a batch."""


class SendResponses:
    """Owner: the broker loop."""

    def __init__(self, config: BrokerConfig, store_host: bytes) -> None:
        trace = "true" if config.trace else "false"
        self._broker = config.name
        self._region = {"MSG_REGION": config.region, "TRACE_ON": trace}
        self._host_hex = store_host.hex().upper()
        self._id = self._host_hex.encode() + b"%016X"
        self._several = (
            b'{"code":%%d,"extFields":{"MSG_REGION":"%s","TRACE_ON":"%s","msgId":"%%s",'
            b'"queueId":"%%d","queueOffset":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (config.region.encode(), trace.encode(), VERSION)
        # The same for a single message, with its id and the unique id that the client sent.
        self._single = self._several.replace(b'"%s"', b'"' + self._id + b'"').replace(
            b'"queueOffset":"%d"}', b'"queueOffset":"%d","transactionId":"%s"}'
        )

    def singles(self, asked: Iterable[Asked], stored: Stored) -> bytes:
        """The responses to consecutive single messages, without those to one-way requests."""
        places, offsets, outcome = stored
        code, template, pack = CODES[outcome], _with_remark(self._single, outcome), PREFIX.pack
        pieces: list[bytes] = []
        for (opaque, queue_id, flag, unique), place, offset in zip(
            asked, places, offsets, strict=True
        ):
            if not flag & ONEWAY_FLAG:
                text = template % (code, place, queue_id, offset, unique, opaque)
                size = len(text)
                pieces.append(pack(size + 4, size) + text)
        return b"".join(pieces)

    def batch(self, asked: Asked, stored: Stored) -> bytes:
        """The response to one batch, whose messages were stored like this."""
        opaque, queue_id, _, _ = asked
        places, offsets, outcome = stored
        template = self._id
        ids = b",".join([template % place for place in places[:IDS_MAX]])
        code, text = CODES[outcome], _with_remark(self._several, outcome)
        text %= (code, ids, queue_id, offsets[0], opaque)
        return PREFIX.pack(len(text) + 4, len(text)) + text

    def full(self, header: Header, first: Entry, stored: Stored, *, is_batch: bool) -> bytes:
        """The response with all fields, serialised like the request. `first` is the first
        message."""
        places = stored.places[:IDS_MAX]
        ext = {
            "msgId": ",".join([f"{self._host_hex}{place:016X}" for place in places]),
            "queueId": str(first.queue.queue_id),
            "queueOffset": str(stored.offsets[0]),
        } | self._region
        unique = Incoming("", 0, b"", first.properties).get(keys.UNIQ_KEY)
        if unique is not None and not is_batch:
            ext["transactionId"] = unique.decode("utf-8", "replace")
        if first.queue.topic == TIMER_TOPIC and not is_batch:
            ext["recallHandle"] = handle_of(first.properties, self._broker) or ""
        remark = REMARKS.get(stored.outcome)
        return encode_reply(header, Reply(CODES[stored.outcome], ext, remark=remark))


def _with_remark(template: bytes, outcome: Outcome) -> bytes:
    """The template with a remark if the outcome is not SEND_OK: why, and whether the message may
    be stored."""
    remark = REMARKS.get(outcome)
    return template[:-1] + b',"remark":"%s"}' % remark.encode() if remark else template


def refusal(header: Header, refused: RequestRejected) -> bytes:
    return encode_reply(header, Reply(refused.code, refused.ext, remark=refused.remark))
