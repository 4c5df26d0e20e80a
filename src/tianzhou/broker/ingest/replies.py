"""Request and reply: a consumer replies to a message, and its producer waits for the reply.

The reply is pushed to the client of the requester, found by the id of its heartbeats; then it is
stored like any message, and the response reports both results. A reply that could not be pushed is
stored as well.
"""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import Sessions
from tianzhou.broker.ingest.admission import Admission, SendHeader
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, Peer, Reply, Request, RequestRejected
from tianzhou.record import ids
from tianzhou.record import names as keys
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import (
    PushReplyRequest,
    SendMessageRequest,
    SendMessageV2Request,
)
from tianzhou.wire.codec import Header

PUSH_TIMEOUT_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class Replies:
    config: BrokerConfig
    admission: Admission
    sessions: Sessions
    writer: Writer
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    def reply(self, request: Request) -> None:
        self._reply(request, SendMessageRequest.from_ext(request.header.ext))

    def reply_v2(self, request: Request) -> None:
        self._reply(request, SendMessageV2Request.from_ext(request.header.ext))

    def _reply(self, request: Request, fields: SendHeader) -> None:
        topic = self.admission.topic_for(fields)
        text = (fields.properties or "").encode("utf-8", "replace")
        self.admission.check_size(len(request.body), len(text))
        message = Incoming(
            topic.topic_name,
            self.admission.queue_for(topic, fields.queue_id),
            request.body,
            text,
            fields.flag,
            self.admission.flag_of(fields),
            fields.born_timestamp_ms,
            request.peer.remote_host,
            max(fields.reconsume_times, 0),
        )
        message = self.admission.admit_reply(message)
        message = message.with_properties({keys.PUSH_REPLY_TIME: b"%d" % self.clock.now_ms()})
        client_id = (message.get(keys.REPLY_TO_CLIENT) or b"").decode("utf-8", "replace")
        requester = self._find(client_id)
        if requester is None:
            why = (
                f"push reply message fail, client {client_id} is not connected"
                if client_id
                else "the reply has no receiver: its property REPLY_TO_CLIENT is missing"
            )
            self._store(request, message, why)
            return

        def on_response(header: Header | None, _body: bytes) -> None:
            failed = ""
            if header is None or header.code != ResponseCode.SUCCESS:
                problem = f"its response was {header.code}" if header else "it did not respond"
                failed = f"push reply message to {client_id} fail: {problem}"
            self._store(request, message, failed)

        requester.ask(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._pushed(request, fields, message).to_ext(),
            request.body,
            on_response,
            timeout_s=PUSH_TIMEOUT_S,
        )

    def _find(self, client_id: str) -> Peer | None:
        for clients in self.sessions.producers.values():
            for client in clients.values():
                if client.client_id == client_id and client.peer.is_open:
                    return client.peer
        return None

    def _pushed(self, request: Request, fields: SendHeader, message: Incoming) -> PushReplyRequest:
        host = ids.decode_host(self.writer.form.store_host)
        return PushReplyRequest(
            producer_group=fields.producer_group,
            topic=fields.topic,
            default_topic=fields.default_topic,
            default_topic_queue_nums=fields.default_topic_queue_nums,
            queue_id=message.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp_ms=fields.born_timestamp_ms,
            flag=fields.flag,
            properties=message.properties.decode("utf-8", "replace"),
            reconsume_times=fields.reconsume_times,
            unit_mode=fields.unit_mode,
            born_host=request.peer.remote,
            store_host=f"{host.address}:{host.port}",
            store_timestamp_ms=self.clock.now_ms(),
        )

    def _store(self, request: Request, message: Incoming, failed: str) -> None:
        """Store the reply and respond to its sender. This may run after the handler has returned,
        so the response is sent here."""
        code = ResponseCode.SYSTEM_ERROR if failed else ResponseCode.SUCCESS
        try:
            appended = self.writer.put([message.to_entry()])
        except RequestRejected as refused:
            # The requester has its reply, so the reply counts as sent although it is not stored.
            reply = Reply(code, self._ext("0", message.queue_id, 0), remark=failed or None)
            if failed:
                reply = Reply(code, remark=f"{failed}; {refused.remark}")
            if not request.header.is_oneway:
                request.peer.send(encode_reply(request.header, reply))
            return
        (place,) = appended.physical_offsets()
        name = ids.offset_id(self.writer.form.store_host, place)
        ext = self._ext(name, message.queue_id, appended.queue_offsets[0])
        reply_when_durable(
            self.writer, request, appended.end, Reply(code, ext, remark=failed or None)
        )

    def _ext(self, message_id: str, queue_id: int, offset: int) -> dict[str, str]:
        return {
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "MSG_REGION": self.config.region,
            "TRACE_ON": "true" if self.config.trace else "false",
        }
