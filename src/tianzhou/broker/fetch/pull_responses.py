"""A pull that is being served, and the head of its response: the status on the wire and the next
offset. The stored bytes follow unchanged."""

from dataclasses import dataclass
from typing import Final

from tianzhou.broker.groups.subscriptions import Filter
from tianzhou.net.rpc import Peer
from tianzhou.store.read import ReadResult, ReadStatus
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import encode_head
from tianzhou.wire.frame import frame_prefix
from tianzhou.wire.header import RESPONSE_FLAG, VERSION, Header, SerialiseType

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NOT_READY: ResponseCode.PULL_RETRY_IMMEDIATELY,
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


@dataclass(slots=True)
class PendingPull:
    """One pull, from its admission to its response. A `Waiter` while it finds nothing."""

    peer: Peer
    opaque: int
    serialise_type: SerialiseType
    request: PullMessageRequest
    filter: Filter
    offset: int
    """The messages before this offset were read and do not match."""
    deadline: float
    """When it gets a response at the latest; 0 if it does not wait for new messages."""
    topic_sys_flag: int = 0
    group_sys_flag: int = 0
    """Repeated in the response."""
    is_reading: bool = False
    """Whether it waits for a `PendingRead`, and not for new messages."""
    may_suspend: bool = True
    """Whether it may wait for new messages."""

    @property
    def group(self) -> str:
        return self.request.consumer_group


def head_of(
    pull: PendingPull, status: ReadStatus, result: ReadResult, *, size: int, where_next: int
) -> bytes:
    """Everything before a body of `size` bytes, serialised like the request."""
    code = _code_of(pull, status)
    if pull.serialise_type is SerialiseType.JSON:
        text = _ANSWER % (
            code,
            pull.group_sys_flag,
            result.max_offset,
            result.min_offset,
            result.next_offset,
            where_next,
            pull.topic_sys_flag,
            pull.opaque,
            status.name.encode(),
        )
        return frame_prefix(serialise_type=0, header_size=len(text), body_size=size) + text
    ext = {
        "suggestWhichBrokerId": str(where_next),
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        "topicSysFlag": str(pull.topic_sys_flag),
        "groupSysFlag": str(pull.group_sys_flag),
    }
    header = Header(
        code=code,
        opaque=pull.opaque,
        flag=RESPONSE_FLAG,
        remark=status.name,
        ext=ext,
        serialise_type=pull.serialise_type,
    )
    return encode_head(header, size)


def _code_of(pull: PendingPull, status: ReadStatus) -> ResponseCode:
    if status is ReadStatus.OFFSET_OVERFLOW_ONE and pull.offset != pull.request.queue_offset:
        # Everything before this offset was read while the pull waited.
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    code = _CODES.get(status)
    if code is not None:
        return code
    # No such queue, or nothing in it yet.
    moved = pull.request.queue_offset != 0
    return ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
