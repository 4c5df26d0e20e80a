"""Stores messages that the broker itself creates, for which no client waits."""

import logging
from typing import Final

from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import Entry
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.broker")


def deliver(writer: Writer, entries: list[Entry]) -> bool:
    """Store messages in one append; returns False if nothing can be stored now."""
    if not entries:
        return True
    try:
        writer.put(entries)
    except RequestRejected as refused:
        if refused.code != ResponseCode.MESSAGE_ILLEGAL:
            return False
        return _deliver_singly(writer, entries, refused)
    return True


def _deliver_singly(writer: Writer, entries: list[Entry], refused: RequestRejected) -> bool:
    """Store each message separately: one that can never be stored must not block the others."""
    if len(entries) == 1:
        log.error(
            "delivery.impossible",
            extra={"topic": entries[0].queue.topic, "reason": refused.remark},
        )
        return True
    return all(deliver(writer, [entry]) for entry in entries)
