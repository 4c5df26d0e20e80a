"""RECALL_MESSAGE: a producer takes a timed message back before its moment."""

from dataclasses import dataclass

from tianzhou.base.clock import Clock
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.writing import incoming
from tianzhou.broker.writing import recall_handle as recall
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.recall_handle import Handle
from tianzhou.broker.writing.stored import records
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import RecallMessageRequest, RecallMessageResponse


@dataclass(slots=True)
class Recall:
    config: BrokerConfig
    store: MessageStore
    permission: Permission
    timers: Timers
    writer: Writer
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, request: Request) -> Reply | None:
        asked = RecallMessageRequest.from_ext(request.header.ext)
        self.permission.check_write()
        handle = self._checked(asked)
        cancelling = Incoming(
            handle.topic, 0, b"0", b"TAGS\x01_RECALL_TAG_\x02",
            born_timestamp=self.clock.now_ms(), born_host=request.peer.remote_host,
        )  # fmt: skip
        record = incoming.timed(cancelling, handle.deliver_ms).with_properties(
            {keys.TIMER_DELETE_UNIQ_KEY: handle.cancel_key()}
        )
        appended = self.writer.put([record.to_entry()])
        self.timers.cancel(handle.cancel_key())
        reply = Reply(ext=RecallMessageResponse(msg_id=handle.unique_id).to_ext())
        reply_when_durable(self.writer, request, appended.end, reply)
        return None

    def _checked(self, asked: RecallMessageRequest) -> Handle:
        handle = recall.decode(asked.recall_handle)
        if handle is None:
            raise _refused("the handle is none that a broker gave out")
        if handle.topic != asked.topic:
            raise _refused(f"the handle is of topic {handle.topic}, not {asked.topic}")
        if handle.broker != self.config.name:
            raise _refused(f"the message is at broker {handle.broker}, not {self.config.name}")
        left_ms = handle.deliver_ms - self.clock.now_ms()
        if left_ms <= 0:
            raise _refused(f"the message was delivered {-left_ms} ms ago")
        if not self._waits(handle):
            raise _refused(f"no message {handle.unique_id} waits for {handle.deliver_ms}")
        return handle

    def _waits(self, handle: Handle) -> bool:
        """Whether there is such a message. Without an index, take it for granted."""
        if self.store.index is None:
            return True
        with self.store.find(names.TIMER_TOPIC, handle.unique_id) as found:
            return any(
                stored.get(keys.REAL_TOPIC) == handle.topic.encode()
                and stored.number(keys.TIMER_DELIVER_MS, -1) == handle.deliver_ms
                for stored in records(found)
            )


def _refused(reason: str) -> RequestRejected:
    return RequestRejected(ResponseCode.ILLEGAL_OPERATION, f"recall failed: {reason}")
