"""Heads of answers to pulls: what a status is on the wire, and where to go on. The stored bytes
follow as they are."""

from typing import Final

from tianzhou.broker.fetch.long_poll import Hold
from tianzhou.store.read import ReadResult, ReadStatus
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import encode_head
from tianzhou.wire.frame import frame_prefix
from tianzhou.wire.header import RESPONSE_FLAG, VERSION, Header, SerialiseType

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_ANSWER: Final = (
    b'{"code":%%d,"extFields":{"groupSysFlag":"%%d","maxOffset":"%%d","minOffset":"%%d",'
    b'"nextBeginOffset":"%%d","suggestWhichBrokerId":"%%d","topicSysFlag":"%%d"},"flag":1,'
    b'"language":"PYTHON","opaque":%%d,"remark":"%%s","serializeTypeCurrentRPC":"JSON",'
    b'"version":%d}'
) % VERSION


def head_of(
    hold: Hold, status: ReadStatus, result: ReadResult, *, size: int, where_next: int
) -> bytes:
    """Everything before a body of `size` bytes, in the form in which the pull was asked."""
    code = _code_of(hold, status)
    if hold.serialise_type is SerialiseType.JSON:
        text = _ANSWER % (
            code, hold.group_sys_flag, result.max_offset, result.min_offset, result.next_offset,
            where_next, hold.topic_sys_flag, hold.opaque, status.name.encode(),
        )  # fmt: skip
        return frame_prefix(serialise_type=0, header_size=len(text), body_size=size) + text
    ext = {
        "suggestWhichBrokerId": str(where_next),
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        "topicSysFlag": str(hold.topic_sys_flag),
        "groupSysFlag": str(hold.group_sys_flag),
    }
    header = Header(
        code=code, opaque=hold.opaque, flag=RESPONSE_FLAG, remark=status.name, ext=ext,
        serialise_type=hold.serialise_type,
    )  # fmt: skip
    return encode_head(header, size)


def _code_of(hold: Hold, status: ReadStatus) -> ResponseCode:
    if status is ReadStatus.OFFSET_OVERFLOW_ONE and hold.offset != hold.request.queue_offset:
        # Everything up to here was looked at while the pull was held.
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    code = _CODES.get(status)
    if code is not None:
        return code
    # No such queue, or nothing in it yet.
    moved = hold.request.queue_offset != 0
    return ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
