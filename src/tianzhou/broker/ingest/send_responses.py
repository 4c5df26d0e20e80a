"""Answers to sends, written from templates: only ids, queue, offset and opaque number differ."""

from collections.abc import Iterable, Sequence
from typing import Final

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import TIMER_TOPIC
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.recall_handle import handle_of
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Reply, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.wire.frame import PREFIX
from tianzhou.wire.header import ONEWAY_FLAG, VERSION, Header

IDS_MAX: Final = 4_096
"""Ids in the answer to a batch; more would not fit its header."""

Asked = tuple[int, int, int, bytes]
"""Opaque number, queue id and flag of a request, and the unique id of its message, which needs no
escaping in JSON; empty for a batch."""


class SendAnswers:
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

    def singles(
        self, asked: Iterable[Asked], places: Sequence[int], offsets: Sequence[int], code: int,
        remark: str = "",
    ) -> bytes:  # fmt: skip
        """The answers to a row of single messages, those that want one."""
        template, pack = _remarked(self._single, remark), PREFIX.pack
        pieces: list[bytes] = []
        for (opaque, queue_id, flag, unique), place, offset in zip(
            asked, places, offsets, strict=True
        ):
            if not flag & ONEWAY_FLAG:
                text = template % (code, place, queue_id, offset, unique, opaque)
                size = len(text)
                pieces.append(pack(size + 4, size) + text)
        return b"".join(pieces)

    def batch(
        self, asked: Asked, places: Sequence[int], offset: int, code: int, remark: str = ""
    ) -> bytes:
        """The answer to one batch, whose first message got this offset."""
        opaque, queue_id, _, _ = asked
        template = self._id
        ids = b",".join([template % place for place in places[:IDS_MAX]])
        text = _remarked(self._several, remark) % (code, ids, queue_id, offset, opaque)
        return PREFIX.pack(len(text) + 4, len(text)) + text

    def full(
        self, header: Header, first: Entry, places: Sequence[int], offset: int, code: int,
        *, is_batch: bool, remark: str | None = None,
    ) -> bytes:  # fmt: skip
        """The answer with everything that can be in one, in the form of the request."""
        ext = {
            "msgId": ",".join([f"{self._host_hex}{place:016X}" for place in places[:IDS_MAX]]),
            "queueId": str(first.queue.queue_id),
            "queueOffset": str(offset),
        } | self._region
        unique = Incoming("", 0, b"", first.properties).get(keys.UNIQ_KEY)
        if unique is not None and not is_batch:
            ext["transactionId"] = unique.decode("utf-8", "replace")
        if first.queue.topic == TIMER_TOPIC and not is_batch:
            ext["recallHandle"] = handle_of(first.properties, self._broker) or ""
        return encode_reply(header, Reply(code, ext, remark=remark))


def _remarked(template: bytes, remark: str) -> bytes:
    """The same with a remark: what is not SEND_OK says why, and whether the message may exist."""
    return template[:-1] + b',"remark":"%s"}' % remark.encode() if remark else template


def refusal(header: Header, refused: RequestRejected) -> bytes:
    return encode_reply(header, Reply(refused.code, refused.ext, remark=refused.remark))
