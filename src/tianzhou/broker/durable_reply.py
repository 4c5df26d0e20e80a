"""Answers that leave once what they speak of is as safe as the configuration promises."""

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.writer import Writer
from tianzhou.net.desk import encode_reply
from tianzhou.net.exchange import Reply, Request
from tianzhou.wire._generated_codes import ResponseCode


def reply_when_durable(writer: Writer, request: Request, end: PhysicalOffset, reply: Reply) -> None:
    if request.header.is_oneway:
        return

    def answer(durable: bool) -> None:
        told = reply
        if not durable:
            told = Reply(
                ResponseCode.FLUSH_DISK_TIMEOUT,
                reply.ext,
                remark="stored, but the disk took too long; whether it stays is unknown",
            )
        request.peer.send(encode_reply(request.header, told))

    writer.when_durable(end, answer)
