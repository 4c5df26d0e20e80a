"""Sending: the hottest path. All sends of one read become one chunk, one append, one write.

`Send.run` takes a row of send frames. A message without anything special goes the short way: typed
header, cached target, one tuple. Everything else (new topics, batches, retries, delays,
transactions, binary headers) goes through `Admission`, one at a time, after what was gathered
before it is in the log, so that order is kept.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.broker.admission import (
    INDEX_KEYS_MAX,
    MANY_KEYS_BYTES,
    Admission,
    SendHeader,
    check_keys,
)
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.incoming import Incoming
from tianzhou.broker.names import TIMER_TOPIC
from tianzhou.broker.recall import handle_of
from tianzhou.broker.topics import Topics
from tianzhou.broker.writer import Writer
from tianzhou.net.desk import REMARK_CHARS_MAX, encode_reply
from tianzhou.net.exchange import Refused, Reply
from tianzhou.net.link import Link
from tianzhou.record import names as keys
from tianzhou.record.batch import BatchError, decode_batch
from tianzhou.record.chunk import CRC_PLACEHOLDER, Entry
from tianzhou.store.errors import DiskFull
from tianzhou.store.store import Appended
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import decode_header
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.frame import PREFIX, FrameBatch
from tianzhou.wire.header import VERSION, Header
from tianzhou.wire.headers_json import HeaderReader
from tianzhou.wire.tables import PERM_WRITE

_V2: Final = HeaderReader(SendMessageV2Request)
_V1: Final = HeaderReader(SendMessageRequest)
_KINDS: Final[dict[int, type[SendMessageRequest] | type[SendMessageV2Request]]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequest,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2Request,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2Request,
}
_NOT_PLAIN: Final = 0x0C  # transaction bits
# A named tuple without the call of its own constructor, which takes twice as long.
_new_entry: Final = cast(
    "Callable[[type[Entry], tuple[object, ...]], Entry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] - the stub leaves its items open
)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_SHORT_PROPERTIES: Final = 1024
"""Longer ones may hold too many keys and are looked at closely."""
IDS_MAX: Final = 4_096
"""Ids in the answer to a batch; more would not fit its header."""


class Sender(NamedTuple):
    """Who asks, in which form, and whether it wants to hear."""

    link: Link
    header: Header
    fields: SendHeader
    is_batch: bool


class _Batch(NamedTuple):
    """A batch that waits for its answer, and which of the stored messages are its own."""

    opaque: int
    flag: int
    start: int
    end: int


class Send:
    """Owner: the broker loop."""

    def __init__(
        self, config: BrokerConfig, topics: Topics, admission: Admission, writer: Writer
    ) -> None:
        self._topics = topics
        self._admission = admission
        self._writer = writer
        self._body_max = admission.body_bytes_max
        self._targets: dict[str, tuple[QueueKey, ...]] = {}
        """Queues of the topics that were sent to; emptied whenever a topic changes."""
        topics.changed.append(self.forget_targets)
        trace = b"true" if config.trace else b"false"
        # Sends of the short way end with the place of the checksum, so that it need not be added.
        self._ending = CRC_PLACEHOLDER if writer.record_crc else b""
        self._added = b"MSG_REGION\x01%s\x02TRACE_ON\x01%s\x02CLUSTER\x01%s\x02" % (
            config.region.encode(), trace, config.cluster.encode(),
        )  # fmt: skip
        self._host_hex = writer.store_host.hex().upper()
        self._id = self._host_hex.encode() + b"%016X"
        self._answer_ids = (
            b'{"code":%%d,"extFields":{"MSG_REGION":"%s","TRACE_ON":"%s","msgId":"%%s",'
            b'"queueId":"%%d","queueOffset":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (config.region.encode(), trace, VERSION)
        # The same with the one id of a single message.
        self._answer = self._answer_ids.replace(b'"%s"', b'"' + self._id + b'"')
        self._broker = config.name
        self._region = {"MSG_REGION": config.region, "TRACE_ON": trace.decode()}

    def forget_targets(self) -> None:
        """A topic or a permission changed: look again."""
        self._targets.clear()

    def run(self, link: Link, batch: FrameBatch, indexes: Sequence[int], *, is_v2: bool) -> None:
        """A row of single sends with JSON headers."""
        decode = _V2.decode if is_v2 else _V1.decode
        view, starts, bodies, ends = batch.view, batch.headers, batch.bodies, batch.ends
        host, added, new = link.remote_host, self._added + self._ending, _new_entry
        if len(host) > 8:
            indexes, slowly = (), indexes
            for index in slowly:
                self.one(link, batch, index)
        entries: list[Entry] = []
        asked: list[tuple[int, int, int]] = []
        for index in indexes:
            start = bodies[index]
            try:
                header = decode(view[starts[index] : start])
            except _UNREADABLE:
                header = None
            fields = header.ext if header is not None else None
            queues = self._targets.get(fields.topic) if fields is not None else None
            if header is None or fields is None or queues is None:
                self._flush(link, entries, asked)
                if link.has_enough:
                    link.leave(batch, index)
                    return
                self.one(link, batch, index)
                continue
            text = (fields.properties or "").encode()
            queue_id = fields.queue_id
            if (
                not 0 <= queue_id < len(queues)
                or fields.batch
                or fields.sys_flag & _NOT_PLAIN
                or fields.reconsume_times
                or ends[index] - start > self._body_max
                or is_special(text)
            ):
                self._flush(link, entries, asked)
                self.one(link, batch, index)
                continue
            text = text + added if text[-1] == 2 else text + b"\x02" + added
            entries.append(
                new(
                    Entry,
                    (
                        queues[queue_id], view[start : ends[index]], text, fields.flag,
                        fields.sys_flag, fields.born_timestamp_ms, host, 0, 0,
                    ),
                )
            )  # fmt: skip
            asked.append((header.opaque, queue_id, header.flag))
        self._flush(link, entries, asked)

    def _flush(self, link: Link, entries: list[Entry], asked: list[tuple[int, int, int]]) -> None:
        """Store what was gathered, and answer it now or when it is durable."""
        if not entries:
            return
        rows = asked.copy()
        try:
            appended = self._writer.put(entries)
        except Refused as refused:
            for opaque, _, flag in rows:
                if not flag & 2:
                    header = Header(code=0, opaque=opaque)
                    link.send(encode_reply(header, Reply(refused.code, remark=refused.remark)))
            entries.clear()
            asked.clear()
            return
        entries.clear()
        asked.clear()
        places = appended.physical_offsets()
        offsets = appended.queue_offsets
        stored = appended.end - places[0]
        link.wait(len(rows), stored)

        def answer(durable: bool) -> None:
            code = 0 if durable else ResponseCode.FLUSH_DISK_TIMEOUT
            template, pack = self._answer, PREFIX.pack
            pieces: list[bytes] = []
            for (opaque, queue_id, flag), place, offset in zip(rows, places, offsets, strict=True):
                if not flag & 2:
                    text = template % (code, place, queue_id, offset, opaque)
                    size = len(text)
                    pieces.append(pack(size + 4, size) + text)
            link.send(b"".join(pieces))
            link.waited(len(rows), stored)

        self._writer.when_durable(appended.end, answer)

    # Batches

    def run_batches(self, link: Link, batch: FrameBatch, indexes: Sequence[int]) -> None:
        """A row of batches with JSON headers: one append for all of them."""
        entries: list[Entry] = []
        asked: list[_Batch] = []
        for index in indexes:
            made = self._plain_batch(link, batch, index)
            if made is None:
                self._flush_batches(link, entries, asked)
                if link.has_enough:
                    link.leave(batch, index)
                    return
                self.one(link, batch, index)
                continue
            opaque, flag, inner = made
            asked.append(_Batch(opaque, flag, len(entries), len(entries) + len(inner)))
            entries += inner
        self._flush_batches(link, entries, asked)

    def _plain_batch(
        self, link: Link, batch: FrameBatch, index: int
    ) -> tuple[int, int, list[Entry]] | None:
        """The messages of a batch that needs no closer look; None for one that does."""
        try:
            header = _V2.decode(batch.header(index))
        except _UNREADABLE:
            return None
        fields, body = header.ext, batch.body(index)
        queues = self._targets.get(fields.topic)
        text = (fields.properties or "").encode()
        if (
            queues is None
            or not 0 <= fields.queue_id < len(queues)
            or fields.sys_flag & _NOT_PLAIN
            or fields.reconsume_times
            or len(body) > self._body_max
            or len(text) > _SHORT_PROPERTIES
            or b"WAIT\x01false" in text
        ):
            return None
        message = Incoming(
            fields.topic, fields.queue_id, body, self._completed(text, fields), fields.flag,
            fields.sys_flag, fields.born_timestamp_ms, link.remote_host,
        )  # fmt: skip
        try:
            return header.opaque, header.flag, self._split(message)
        except Refused:
            return None  # refused again, with an answer, on the slow way

    def _flush_batches(self, link: Link, entries: list[Entry], asked: list[_Batch]) -> None:
        """Store the batches gathered, and answer each now or when it is durable."""
        if not entries:
            return
        rows, stored = asked.copy(), entries.copy()
        entries.clear()
        asked.clear()
        try:
            appended = self._writer.put(stored)
        except Refused as refused:
            for row in rows:
                self._refuse(link, Header(code=0, opaque=row.opaque, flag=row.flag), refused)
            return
        places, offsets = appended.physical_offsets(), appended.queue_offsets
        size = appended.end - places[0]
        link.wait(len(rows), size)

        def answer(durable: bool) -> None:
            code = 0 if durable else ResponseCode.FLUSH_DISK_TIMEOUT
            for row in rows:
                if not row.flag & 2:
                    first = row.start
                    ids = [self._id % place for place in places[first : row.end][:IDS_MAX]]
                    queue_id = stored[first].queue.queue_id
                    text = self._answer_ids % (
                        code,
                        b",".join(ids),
                        queue_id,
                        offsets[first],
                        row.opaque,
                    )
                    link.send(PREFIX.pack(len(text) + 4, len(text)) + text)
            link.waited(len(rows), size)

        self._writer.when_durable(appended.end, answer)

    # One at a time

    def one(self, link: Link, batch: FrameBatch, index: int) -> None:
        """Any send, with every check. HeaderError: the header is unreadable."""
        header = decode_header(batch.header(index), batch.serialise_types[index])
        body = batch.body(index)
        try:
            fields = _KINDS[header.code].from_ext(header.ext)
            sender = Sender(link, header, fields, _is_batch(header, fields))
            self._store(sender, body)
        except HeaderFieldError as error:
            self._refuse(link, header, Refused(ResponseCode.INVALID_PARAMETER, str(error)))
        except Refused as refused:
            self._refuse(link, header, refused)
        except DiskFull as error:  # no room for the table of topics
            self._refuse(
                link, header, Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"disk full: {error}")
            )
        except TianzhouError as error:
            self._refuse(
                link, header, Refused(ResponseCode.SYSTEM_ERROR, str(error)[:REMARK_CHARS_MAX])
            )

    def _store(self, sender: Sender, body: memoryview) -> None:
        fields, admission = sender.fields, self._admission
        topic = admission.topic_for(fields)
        text = (fields.properties or "").encode("utf-8", "replace")
        admission.check_size(len(body), len(text))
        queue_id = admission.queue_for(topic, fields.queue_id)
        message = Incoming(
            topic.topic_name, queue_id, body, self._completed(text, fields), fields.flag,
            fields.sys_flag, fields.born_timestamp_ms, sender.link.remote_host,
            fields.reconsume_times,
        )  # fmt: skip
        if sender.is_batch:
            entries = self._split(message)
        else:
            entries = [admission.admit(message, fields, sender.header.version).to_entry()]
        appended = self._writer.put(entries)
        if not sender.header.is_oneway:
            waits, size = b"WAIT\x01false" not in text, len(body)
            sender.link.wait(1, size)
            self._writer.when_durable(
                appended.end, lambda durable: self._tell(sender, entries, appended, size, durable),
                wait=waits,
            )  # fmt: skip
        if fields.topic not in self._targets and topic.perm & PERM_WRITE:
            queues = max(topic.write_queue_nums, topic.read_queue_nums)
            if topic.topic_name == fields.topic and "%" not in fields.topic:
                self._targets[fields.topic] = tuple(
                    queue_key(fields.topic, number) for number in range(queues)
                )

    def _completed(self, text: bytes, fields: SendHeader) -> bytes:
        """The properties with what every stored message has."""
        message = Incoming(fields.topic, 0, b"", text)
        if message.get(keys.MSG_REGION) is None:
            message = message._replace(properties=_closed(text) + self._added)
        if message.get(keys.POP_CHECKPOINT) is not None:
            message = message.with_properties({keys.POP_CHECKPOINT: b""})
        return message.properties

    def _split(self, message: Incoming) -> list[Entry]:
        if message.topic.startswith("%RETRY%"):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "retry topics take no batches")
        try:
            inner = decode_batch(message.body)
        except BatchError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        for one in inner:
            check_keys(one.properties)
        shared = message.to_entry()
        queue, _, outer, _, *rest = shared
        # The batch has an id too; behind a message's own it would be the one that counts.
        rest_of_outer = message.with_properties({keys.UNIQ_KEY: b""}).properties
        entries: list[Entry] = []
        for flag, body, view in inner:
            text = _closed(bytes(view))
            text += rest_of_outer if b"UNIQ_KEY\x01" in text else outer
            entries.append(_new_entry(Entry, (queue, body, text, flag, *rest)))
        return entries

    def _tell(
        self, sender: Sender, entries: list[Entry], appended: Appended, size: int, durable: bool
    ) -> None:
        places = appended.physical_offsets()[:IDS_MAX]
        ids = [f"{self._host_hex}{place:016X}" for place in places]
        ext = {
            "msgId": ",".join(ids),
            "queueId": str(entries[0].queue.queue_id),
            "queueOffset": str(appended.queue_offsets[0]),
        } | self._region
        unique = Incoming("", 0, b"", entries[0].properties).get(keys.UNIQ_KEY)
        if unique is not None and not sender.is_batch:
            ext["transactionId"] = unique.decode("utf-8", "replace")
        if entries[0].queue.topic == TIMER_TOPIC and not sender.is_batch:
            ext["recallHandle"] = handle_of(entries[0].properties, self._broker) or ""
        code = ResponseCode.SUCCESS if durable else ResponseCode.FLUSH_DISK_TIMEOUT
        sender.link.send(encode_reply(sender.header, Reply(code, ext)))
        sender.link.waited(1, size)

    def _refuse(self, link: Link, header: Header, refused: Refused) -> None:
        if not header.is_oneway:
            link.send(encode_reply(header, Reply(refused.code, remark=refused.remark)))


def is_special(text: bytes) -> bool:
    """Whether properties make a message anything but plain, or lack the unique id.

    Four short words stand in all the names that matter; most messages have none of them.
    """
    if b"UNIQ_KEY\x01" not in text or len(text) > _SHORT_PROPERTIES:
        return True
    if len(text) > MANY_KEYS_BYTES and text.count(b" ") >= INDEX_KEYS_MAX:
        return True
    if b"DEL" not in text and b"MSG" not in text and b"POP" not in text and b"false" not in text:
        return False
    return (
        b"DELAY\x01" in text
        or b"TIMER_DEL" in text
        or b"TRAN_MSG\x01" in text
        or b"MSG_REGION\x01" in text
        or b"POP_CK\x01" in text
        or b"WAIT\x01false" in text
    )


def _is_batch(header: Header, fields: SendHeader) -> bool:
    return fields.batch or header.code == RequestCode.SEND_BATCH_MESSAGE


def _closed(text: bytes) -> bytes:
    return text if not text or text[-1] == 2 else text + b"\x02"
