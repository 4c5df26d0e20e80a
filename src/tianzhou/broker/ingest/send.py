"""Sends: the hottest path. All sends of one read become one chunk, all chunks of one iteration of
the loop one append, all responses to a connection one write.

`Send.handle_sends` handles consecutive send frames. A plain message takes the fast path: typed
header, cached target, one tuple. All others (new topics, retries, delays, transactions, binary
headers) go through `Admission`, one at a time, after the messages before them, so that the order is
kept.

Requests and responses are one file because a send takes all of it, from the header of its
request to the template of its response.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.ingest.admission import (
    INDEX_KEYS_MAX,
    MANY_KEYS_BYTES,
    Admission,
    SendHeader,
    check_batch_flags,
    new_entry,
    split,
)
from tianzhou.broker.ingest.fail_fast import FailFast
from tianzhou.broker.names import TIMER_TOPIC
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.durable_reply import CODES, REMARKS
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Stored, Writer, disk_full
from tianzhou.broker.writing.recall_handle import handle_of
from tianzhou.net.router import REMARK_CHARS_MAX, encode_reply
from tianzhou.net.rpc import Reply, RequestRejected
from tianzhou.net.server_connection import ServerConnection, log_shed
from tianzhou.record import flags, properties
from tianzhou.record import names as keys
from tianzhou.record.chunk import CRC_PLACEHOLDER, Entry
from tianzhou.replication.durability import Outcome
from tianzhou.store.commit_log import Appended
from tianzhou.store.errors import DiskFull
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import ONEWAY_FLAG, VERSION, Header, HeaderReader, decode_header
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.frame import PREFIX, FrameBatch
from tianzhou.wire.names import PERM_WRITE

IDS_MAX: Final = 4_096
"""Ids in the response to a batch; more would not fit its header."""

Asked = tuple[int, int, int, bytes]
"""Opaque number, queue id and flag of a request, and the unique id of its message, which needs no
escaping in JSON; empty for a batch."""
_V2: Final = HeaderReader(SendMessageV2Request)
_V1: Final = HeaderReader(SendMessageRequest)
_KINDS: Final[dict[int, type[SendMessageRequest] | type[SendMessageV2Request]]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequest,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2Request,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2Request,
}
_NOT_PLAIN: Final = ~flags.CLIENT_MASK
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_SHORT_PROPERTIES: Final = 1024
"""Longer ones may hold too many keys and take the slow path."""


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


class Send:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        admission: Admission,
        writer: Writer,
        *,
        fail_fast: FailFast,
        refused: Callable[[int, int], None],
    ) -> None:
        self._topics = topics
        self._fail_fast = fail_fast
        self._admission = admission
        self._writer = writer
        self._responses = SendResponses(config, writer.form.store_host)
        self.refused = refused
        """Called with the code and the number of rejected sends."""
        self._targets: dict[str, tuple[QueueKey, ...]] = {}
        """Queues of the topics that were sent to; emptied whenever a topic changes."""
        topics.changed.append(self.forget_targets)
        self._added = b"MSG_REGION\x01%s\x02TRACE_ON\x01%s\x02CLUSTER\x01%s\x02" % (
            config.region.encode(),
            b"true" if config.trace else b"false",
            config.cluster.encode(),
        )
        # Messages of the fast path end with the placeholder of the checksum.
        ending = CRC_PLACEHOLDER if writer.form.record_crc else b""
        self._finish = (self._added + ending).decode()

    def forget_targets(self) -> None:
        """Clear the cache: a topic or a permission changed."""
        self._targets.clear()

    def handle_sends(
        self,
        connection: ServerConnection,
        batch: FrameBatch,
        indexes: Sequence[int],
        *,
        is_v2: bool,
    ) -> None:
        """Handle consecutive single sends with JSON headers."""
        indexes = self._in_time(connection, batch, indexes)
        decode = _V2.decode if is_v2 else _V1.decode
        view, starts, bodies, ends = batch.view, batch.headers, batch.bodies, batch.ends
        host, new, finish, kind = connection.remote_host, new_entry, self._finish, Entry
        body_max = self._admission.body_bytes_max
        if len(host) > 8:
            indexes, slowly = (), indexes
            for index in slowly:
                self._handle_one(connection, batch, index)
        entries: list[Entry] = []
        asked: list[Asked] = []
        for index in indexes:
            start = bodies[index]
            try:
                header = decode(view[starts[index] : start])
            except _UNREADABLE:
                header = None
            queues = self._targets.get(header.ext.topic) if header is not None else None
            if (
                header is None
                or queues is None
                or (fields := header.ext).batch
                or not 0 <= (queue_id := fields.queue_id) < len(queues)
                or (sys_flag := fields.sys_flag) & _NOT_PLAIN
                or fields.reconsume_times
                or ends[index] - start > body_max
                or (text := fields.properties) is None
                or not (unique := unique_id(text)).isalnum()
                or is_special(text)
            ):
                self._gather(connection, entries, asked)
                entries, asked = [], []
                if connection.has_enough:
                    connection.leave(batch, index)
                    return
                self._handle_one(connection, batch, index)
                continue
            text += finish if text[-1] == "\x02" else "\x02" + finish
            entries.append(
                new(
                    kind,
                    (
                        queues[queue_id],
                        view[start : ends[index]],
                        text.encode(),
                        fields.flag,
                        sys_flag,
                        fields.born_timestamp_ms,
                        host,
                        0,
                        0,
                    ),
                )
            )
            asked.append((header.opaque, queue_id, header.flag, unique))
        self._gather(connection, entries, asked)

    def _in_time(
        self, connection: ServerConnection, batch: FrameBatch, indexes: Sequence[int]
    ) -> Sequence[int]:
        """The sends to store; the others would wait too long and got their response."""
        why = self._fail_fast.rejection(connection.waited_s)
        if why is None:
            return indexes
        oneway: list[int] = []
        rejected = why.response
        for index in indexes:
            header = decode_header(batch.header(index), batch.serialise_types[index])
            if header.is_oneway:
                oneway.append(index)
            else:
                connection.send(refusal(header, rejected))
        count = len(indexes) - len(oneway)
        if count:
            self.refused(rejected.code, count)
            self._fail_fast.rejected(why, count)
        return oneway

    def _gather(
        self, connection: ServerConnection, entries: list[Entry], asked: list[Asked]
    ) -> None:
        """Store messages together with those of other connections, then respond."""
        if not entries:
            return

        def respond(stored: Stored) -> None:
            connection.send(self._responses.singles(asked, stored))

        self._store_row(connection, entries, asked, respond)

    def _store_row(
        self,
        connection: ServerConnection,
        entries: list[Entry],
        asked: list[Asked],
        respond: Callable[[Stored], None],
    ) -> None:
        try:
            chunk = self._writer.build(entries, is_finished=True)
        except RequestRejected as refused:
            self._refuse(connection, asked, refused)
            return
        count, size = len(asked), len(chunk.data)

        def on_stored(stored: Stored | RequestRejected) -> None:
            try:
                if isinstance(stored, RequestRejected):
                    self._refuse(connection, asked, stored)
                else:
                    respond(stored)
            except MemoryError:  # others wait for their responses behind this one
                log_shed(connection)
                connection.close()
            connection.waited(count, size)

        self._writer.gather(chunk, on_stored)
        connection.wait(count, size)

    def _refuse(
        self, connection: ServerConnection, asked: Sequence[Asked], refused: RequestRejected
    ) -> None:
        self.refused(refused.code, len(asked))
        for opaque, _, flag, _ in asked:
            if not flag & ONEWAY_FLAG:
                connection.send(refusal(Header(code=0, opaque=opaque), refused))

    # Batches

    def handle_batches(
        self, connection: ServerConnection, batch: FrameBatch, indexes: Sequence[int]
    ) -> None:
        """Handle consecutive batches with JSON headers, with one append."""
        indexes = self._in_time(connection, batch, indexes)
        entries: list[Entry] = []
        asked: list[Asked] = []
        ends: list[int] = []
        for index in indexes:
            made = self._plain_batch(connection, batch, index)
            if made is None:
                self._gather_batches(connection, entries, asked, ends)
                entries, asked, ends = [], [], []
                if connection.has_enough:
                    connection.leave(batch, index)
                    return
                self._handle_one(connection, batch, index)
                continue
            one, inner = made
            entries += inner
            asked.append(one)
            ends.append(len(entries))
        self._gather_batches(connection, entries, asked, ends)

    def _plain_batch(
        self, connection: ServerConnection, batch: FrameBatch, index: int
    ) -> tuple[Asked, list[Entry]] | None:
        """The messages of a plain batch; None for one that needs the slow path."""
        try:
            header = _V2.decode(batch.header(index))
        except _UNREADABLE:
            return None
        fields, body = header.ext, batch.body(index)
        queues = self._targets.get(fields.topic)
        text = fields.properties or ""
        if (
            queues is None
            or not 0 <= fields.queue_id < len(queues)
            or fields.sys_flag & _NOT_PLAIN
            or fields.reconsume_times
            or len(body) > self._admission.body_bytes_max
            or len(text) > _SHORT_PROPERTIES
            or "WAIT\x01false" in text
            or "__CRC32#" in text
        ):
            return None
        message = Incoming(
            fields.topic,
            fields.queue_id,
            body,
            self._completed(text.encode(), fields),
            fields.flag,
            fields.sys_flag,
            fields.born_timestamp_ms,
            connection.remote_host,
        )
        try:
            inner = split(message, record_crc=self._writer.form.record_crc)
        except RequestRejected:
            return None  # the slow path rejects it with a response
        return (header.opaque, fields.queue_id, header.flag, b""), inner

    def _gather_batches(
        self,
        connection: ServerConnection,
        entries: list[Entry],
        asked: list[Asked],
        ends: list[int],
    ) -> None:
        """Like `_gather`, for batches; `ends` are the ranks at which the batches end."""
        if not entries:
            return

        def respond(stored: Stored) -> None:
            places, offsets, outcome = stored
            first = 0
            for request, end in zip(asked, ends, strict=True):
                if not request[2] & ONEWAY_FLAG:
                    part = Stored(places[first:end], offsets[first:end], outcome)
                    connection.send(self._responses.batch(request, part))
                first = end

        self._store_row(connection, entries, asked, respond)

    # One at a time

    def handle_send(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        """Handle one send of any kind. Raises HeaderError for an unreadable header."""
        for one in self._in_time(connection, batch, (index,)):
            self._handle_one(connection, batch, one)

    def _handle_one(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        """Store one send, with all checks."""
        header = decode_header(batch.header(index), batch.serialise_types[index])
        try:
            fields = _KINDS[header.code].from_ext(header.ext)
            self._store(connection, header, fields, batch.body(index))
        except TianzhouError as error:
            refused = _refused(error)
            self.refused(refused.code, 1)
            if not header.is_oneway:
                connection.send(refusal(header, refused))

    def _store(
        self, connection: ServerConnection, header: Header, fields: SendHeader, body: memoryview
    ) -> None:
        admission = self._admission
        topic = admission.topic_for(fields)
        text = (fields.properties or "").encode("utf-8", "replace")
        admission.check_size(len(body), len(text))
        queue_id = admission.queue_for(topic, fields.queue_id)
        message = Incoming(
            topic.topic_name,
            queue_id,
            body,
            self._completed(text, fields),
            fields.flag,
            admission.flag_of(fields),
            fields.born_timestamp_ms,
            connection.remote_host,
            max(fields.reconsume_times, 0),
        )
        is_batch = fields.batch or header.code == RequestCode.SEND_BATCH_MESSAGE
        if is_batch:
            check_batch_flags(fields.sys_flag)
            entries = split(
                message,
                record_crc=self._writer.form.record_crc,
                light_queues=admission.light_queues,
            )
        else:
            entries = [admission.admit(message, fields, header.version).to_entry()]
        appended = self._writer.put(entries)
        if not header.is_oneway:
            self._respond_later(
                connection,
                header,
                entries[0],
                appended,
                is_batch=is_batch,
                size=len(body),
                wait=b"WAIT\x01false" not in text,
            )
        if fields.topic not in self._targets and topic.perm & PERM_WRITE:
            queues = max(topic.write_queue_nums, topic.read_queue_nums)
            if topic.topic_name == fields.topic and "%" not in fields.topic:
                self._targets[fields.topic] = tuple(
                    queue_key(fields.topic, number) for number in range(queues)
                )

    def _respond_later(
        self,
        connection: ServerConnection,
        header: Header,
        first: Entry,
        appended: Appended,
        *,
        is_batch: bool,
        size: int,
        wait: bool,
    ) -> None:
        connection.wait(1, size)

        def respond(outcome: Outcome) -> None:
            try:
                stored = Stored(appended.physical_offsets(), appended.queue_offsets, outcome)
                response = self._responses.full(header, first, stored, is_batch=is_batch)
                connection.send(response)
            except MemoryError:  # others wait for their responses behind this one
                log_shed(connection)
                connection.close()
            connection.waited(1, size)

        self._writer.when_durable(appended.end, respond, wait=wait)

    def _completed(self, text: bytes, fields: SendHeader) -> bytes:
        """The properties, with those that the broker adds to every message."""
        message = Incoming(fields.topic, 0, b"", text)
        if message.get(keys.MSG_REGION) is None:
            closed = properties.with_trailing_separator(text)
            message = message._replace(properties=closed + self._added)
        if message.get(keys.POP_CHECKPOINT) is not None:
            message = message.with_properties({keys.POP_CHECKPOINT: b""})
        return message.properties


def unique_id(text: str) -> bytes:
    """The unique id in the properties of a plain message, as every client writes it: letters and
    digits. Anything else takes the slow path, which escapes it."""
    at = text.find("UNIQ_KEY\x01")
    if at < 0 or (at and text[at - 1] != "\x02"):
        return b""  # absent, or the name of another property ends with it
    end = text.find("\x02", at + 9)
    return (text[at + 9 : end] if end >= 0 else text[at + 9 :]).encode()


def is_special(text: str) -> bool:
    """Whether properties with a unique id make a message other than plain.

    Searching text is five times faster than searching bytes, and a long needle is found missing in
    half the time of a short one.
    """
    return (
        len(text) > _SHORT_PROPERTIES
        or "DELAY\x01" in text
        or "TIMER_DEL" in text
        or "INNER_MULTI_" in text
        or "TRAN_MSG\x01" in text
        or "MSG_REGION\x01" in text
        or "POP_CK\x01" in text
        or "WAIT\x01false" in text
        or "__CRC32#" in text
        or text.count("\x01") != text.count("\x02") + (text[-1] != "\x02")
        or (len(text) > MANY_KEYS_BYTES and text.count(" ") >= INDEX_KEYS_MAX)
    )


def _refused(error: TianzhouError) -> RequestRejected:
    """An error as the sender must see it."""
    if isinstance(error, RequestRejected):
        return error
    if isinstance(error, HeaderFieldError):
        return RequestRejected(ResponseCode.INVALID_PARAMETER, str(error))
    if isinstance(error, DiskFull):  # no room for the table of topics
        return disk_full(error)
    return RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)[:REMARK_CHARS_MAX])
