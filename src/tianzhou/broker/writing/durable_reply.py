"""Responses that are sent once their messages are as durable as configured."""

from collections.abc import Mapping
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Reply, Request
from tianzhou.replication.durability import Outcome
from tianzhou.wire._generated_codes import ResponseCode

CODES: Final[Mapping[Outcome, ResponseCode]] = {
    Outcome.DURABLE: ResponseCode.SUCCESS,
    Outcome.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    Outcome.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    Outcome.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    # The message may be stored. SERVICE_NOT_AVAILABLE would deny that; RocketMQ's clients try
    # another broker after either code.
    Outcome.NO_QUORUM: ResponseCode.SYSTEM_ERROR,
    Outcome.NOT_MASTER: ResponseCode.SYSTEM_ERROR,
}
REMARKS: Final[Mapping[Outcome, str]] = {
    Outcome.FLUSH_DISK_TIMEOUT: "stored, but the disk took too long; whether it stays is unknown",
    Outcome.FLUSH_SLAVE_TIMEOUT: "stored, but no slave confirmed in time; it may not survive this "
    "broker",
    Outcome.SLAVE_NOT_AVAILABLE: "stored, but no slave is connected; it may not survive "
    "this broker",
    Outcome.NO_QUORUM: "the in-sync replicas are not enough: a majority of the group did not "
    "confirm in time; whether the message stays is unknown",
    Outcome.NOT_MASTER: "this broker is no longer the master; whether the message stays is unknown",
}


def reply_when_durable(writer: Writer, request: Request, end: PhysicalOffset, reply: Reply) -> None:
    if request.header.is_oneway:
        return

    def respond(outcome: Outcome) -> None:
        response = reply
        if outcome is not Outcome.DURABLE:
            response = Reply(CODES[outcome], reply.ext, remark=REMARKS[outcome])
        request.peer.send(encode_reply(request.header, response))

    writer.when_durable(end, respond)
