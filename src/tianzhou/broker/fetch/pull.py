"""Pulls: find the stored bytes of a queue and send them unchanged, now or when messages arrive.

This is in one file because every pull passes through all of it: whether the group may read the
queue, which records it gets, and how the response is encoded.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch.long_poll import LongPolls
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets, end_if_beyond, is_absent
from tianzhou.broker.groups.groups import (
    EVERYTHING,
    TAG,
    Filter,
    Filters,
    Groups,
    Readers,
    Sessions,
    check_commit,
)
from tianzhou.broker.role import Permission
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import disk_full, out_of_memory
from tianzhou.filter.sql92 import Expression
from tianzhou.net.router import REMARK_CHARS_MAX, encode_reply
from tianzhou.net.rpc import Peer, Reply, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record.message import decode_all
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.derive import QueueUnits
from tianzhou.store.errors import DiskFull
from tianzhou.store.protocols import LogAppender, QueueReader
from tianzhou.store.read import PendingRead, ReadLimit, ReadResult, ReadStatus
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import (
    RESPONSE_FLAG,
    VERSION,
    Header,
    HeaderReader,
    decode_header,
    encode_head,
)
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.frame import FrameBatch, SerialiseType, frame_prefix
from tianzhou.wire.heartbeat import MessageModel
from tianzhou.wire.names import (
    MASTER_ID,
    PERM_READ,
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)

_BY_GROUP: Final = 2
_BY_TOPIC: Final = 3
_BY_BROADCAST: Final = 4
_BY_SUBSCRIPTION: Final = 5
"""RocketMQ's numbers for what forbids a pull; 1 is the broker (`Permission.check_read`)."""


class Admitted(NamedTuple):
    """A pull that may be served, with its filter and the flags that its response repeats."""

    filter: Filter
    topic_sys_flag: int
    group_sys_flag: int


class PullAdmission:
    """Owner: the broker loop."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        sessions: Sessions,
        *,
        permission: Permission,
        filters: Filters,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._sessions = sessions
        self._permission = permission
        self._filters = filters

    def check(self, request: PullMessageRequest) -> Admitted:
        """Check a pull, in RocketMQ's order. Raises RequestRejected."""
        permission = self._permission
        if not permission.is_readable:
            permission.check_read()
        if request.sys_flag & PULL_COMMIT_OFFSET:
            check_commit(request.consumer_group)
        group = self._groups.obtain(request.consumer_group)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {request.consumer_group[:128]} does not exist",
            )
        if not group.consume_enable:
            raise forbidden(_BY_GROUP, f"group {group.group_name} may not consume")
        topic = self._topics.get(request.topic)
        if topic is None:
            raise self._topics.unknown(request.topic)
        if not topic.perm & PERM_READ:
            raise forbidden(_BY_TOPIC, f"topic {request.topic} is not readable")
        if not self._groups.may_read(group.group_name, request.topic):
            raise forbidden(
                _BY_SUBSCRIPTION,
                f"group {group.group_name} is not allowed to consume topic {request.topic}",
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {request.topic} has {topic.read_queue_nums} queues to read; "
                f"queue {request.queue_id} is not one of them",
            )
        if request.sys_flag & PULL_CLASS_FILTER:
            found = self._filters.get(None, "*")
        elif request.sys_flag & PULL_SUBSCRIPTION:
            found = self._filters.get(request.expression_type, request.subscription)
        else:
            found = self._subscribed(request, broadcast_allowed=group.consume_broadcast_enable)
        return Admitted(found, topic.topic_sys_flag, group.group_sys_flag)

    def _subscribed(self, request: PullMessageRequest, *, broadcast_allowed: bool) -> Filter:
        """The filter that the group sent with its heartbeats."""
        members = self._sessions.consumers.get(request.consumer_group)
        subscription = members.subscriptions.get(request.topic) if members else None
        if members is None or subscription is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {request.consumer_group} is not known to subscribe to {request.topic}; "
                "a heartbeat must come first",
            )
        described = members.described
        if (
            not broadcast_allowed
            and described is not None
            and described.message_model is MessageModel.BROADCASTING
        ):
            raise forbidden(_BY_BROADCAST, f"group {request.consumer_group} may not broadcast")
        if subscription.sub_version < request.sub_version:
            return self._newer(request)
        return self._filters.get(subscription.expression_type, subscription.sub_string)

    def _newer(self, request: PullMessageRequest) -> Filter:
        """Serve a pull whose subscription is newer than the group's last heartbeat: a heartbeat was
        lost or is in flight, which may take 30 s. The known expression may be outdated, and
        messages that it filters out would be lost. Every client compares tags itself, so a pull by
        tags is served with all messages; one by SQL92 only if it carries its expression."""
        kind = request.expression_type or TAG
        if request.subscription:
            return self._filters.get(kind, request.subscription)
        if kind == TAG:
            return EVERYTHING
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the {kind[:32]} subscription of group {request.consumer_group} is newer than its "
            "last heartbeat; the next heartbeat brings it",
        )


def forbidden(kind: int, remark: str) -> RequestRejected:
    """A pull that is not permitted, with RocketMQ's number for what forbids it."""
    return RequestRejected(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})


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
COUNT_MAX: Final = 1024
"""Messages in one response, even if the client requests more."""
BYTES_DEFAULT: Final = 256 * 1024
BYTES_MAX: Final = 4 * 1024 * 1024
FILTER_S_MAX: Final = 0.02
"""Time that a SQL92 filter may take in one pull; then the messages found so far are sent."""
HELD_PER_PEER_MAX: Final = 1_024
"""Pulls that one connection may have waiting: as many as a topic may have queues."""
SUSPEND_MS_MAX: Final = 60_000
"""Clients request 15 or 20 s; no client waits for a response longer than a minute."""
log: Final = logging.getLogger("tianzhou.broker")
_READER: Final = HeaderReader(PullMessageRequest)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_EMPTY: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)


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


class PullStore(QueueReader, LogAppender, Protocol):
    """What pulls use of a store: they read, and check offsets against the end of a queue."""

    log: CommitLog


class ReadGroup(Protocol):
    """The master and slaves of this broker, as far as pulls depend on them."""

    @property
    def where_next(self) -> Callable[[int], int] | None:
        """Returns the id of the broker to read from next, if this many bytes of the log follow what
        was read. None: there is no other broker to read from."""
        ...

    @property
    def lacks_messages(self) -> bool:
        """Whether the master may have messages that this broker does not have yet."""
        ...


class Pull:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: PullStore,
        *,
        admission: PullAdmission,
        offsets: ConsumerOffsets,
        stats: Stats,
        readers: Readers,
        catch_up: Callable[[], bool],
        monotonic_s: Callable[[], float],
        group: ReadGroup,
    ) -> None:
        self._config = config
        self._store = store
        self._admission = admission
        self._offsets = offsets
        self._stats = stats
        self._readers = readers
        self._catch_up = catch_up
        self._monotonic_s = monotonic_s
        self.waiters = LongPolls[PendingPull](config.held_pulls_max, self._resume)
        self.group = group
        """The other brokers that have the same messages."""

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def handle_pull(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        """Respond to a pull, or park it. Raises HeaderError for an unreadable header."""
        if batch.serialise_types[index] == SerialiseType.JSON:
            try:
                typed = _READER.decode(batch.header(index))
            except _UNREADABLE:
                pass
            else:
                self._admit(connection, typed.opaque, SerialiseType.JSON, typed.ext)
                return
        header = decode_header(batch.header(index), batch.serialise_types[index])
        try:
            fields = PullMessageRequest.from_ext(header.ext)
        except HeaderFieldError as error:
            refused = RequestRejected(ResponseCode.INVALID_PARAMETER, str(error))
            self._refuse(connection, header.opaque, header.serialise_type, refused)
        else:
            self._admit(connection, header.opaque, header.serialise_type, fields)

    def _commit(self, peer: Peer, request: PullMessageRequest) -> None:
        """Commit the offset that a pull carries. An offset beyond the end of the queue is ignored,
        because the response must deliver the messages."""
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        if request.commit_offset == 0 and is_absent(self._store, topic):
            return
        end = end_if_beyond(self._store, topic, queue_id, request.commit_offset)
        if end is None:
            self._offsets.put(group, topic, queue_id, request.commit_offset)
            return
        log.warning(
            "offset.ignored",
            extra={
                "group": group,
                "topic": topic,
                "queue": queue_id,
                "peer": peer.remote,
                "offset": request.commit_offset,
                "end": end,
            },
        )

    def _admit(
        self, peer: Peer, opaque: int, serialise_type: SerialiseType, request: PullMessageRequest
    ) -> None:
        try:
            admitted = self._admission.check(request)
        except RequestRejected as refused:
            self._refuse(peer, opaque, serialise_type, refused)
            return
        except DiskFull as error:  # no room for the table of groups
            self._refuse(peer, opaque, serialise_type, disk_full(error))
            return
        if request.sys_flag & PULL_COMMIT_OFFSET and request.commit_offset >= 0:
            self._commit(peer, request)
        suspend_ms = min(request.suspend_timeout_ms, SUSPEND_MS_MAX)
        if not self._config.long_polling:
            suspend_ms = min(suspend_ms, self._config.short_polling_ms)
        may_wait = (
            bool(request.sys_flag & PULL_SUSPEND) and suspend_ms > 0 and not self.waiters.is_full
        )
        key, now_s = queue_key(request.topic, request.queue_id), self._monotonic_s()
        self._readers.pulled(request.consumer_group, key, peer, now_s)
        deadline = now_s + suspend_ms / 1000 if may_wait else 0.0
        pull = PendingPull(
            peer,
            opaque,
            serialise_type,
            request,
            admitted.filter,
            request.queue_offset,
            deadline,
            admitted.topic_sys_flag,
            admitted.group_sys_flag,
            False,
            may_wait,
        )
        self._resume(key, pull, may_wait)

    def _resume(self, key: QueueKey, pull: PendingPull, may_wait: bool) -> None:
        """Serve a pull. An error is the response to this pull; it must not reach the client whose
        message woke the pull."""
        if pull.is_reading and may_wait:
            self.waiters.park(key, pull)  # new messages do not help; it waits for its read
            return
        pull.is_reading = False
        try:
            self._serve(key, pull, may_wait=may_wait)
        except RequestRejected as refused:
            self._refuse(pull.peer, pull.opaque, pull.serialise_type, refused)
        except TianzhouError as error:
            refused = RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)[:REMARK_CHARS_MAX])
            self._refuse(pull.peer, pull.opaque, pull.serialise_type, refused)
        except MemoryError:
            try:
                self._refuse(pull.peer, pull.opaque, pull.serialise_type, out_of_memory())
            except MemoryError:  # no memory for an error response either: close the connection
                pull.peer.close()

    def _refuse(
        self, peer: Peer, opaque: int, serialise_type: SerialiseType, refused: RequestRejected
    ) -> None:
        self._stats.refused(refused.code)
        header = Header(code=0, opaque=opaque, serialise_type=serialise_type)
        peer.send(encode_reply(header, Reply(refused.code, refused.ext, remark=refused.remark)))

    # Reading

    def _serve(self, key: QueueKey, pull: PendingPull, *, may_wait: bool) -> None:
        """Respond with the messages found; if there are none, park the pull if it may wait."""
        request = pull.request
        limit = ReadLimit(
            min(max(request.max_msg_nums, 1), COUNT_MAX),
            min(request.max_msg_bytes or BYTES_DEFAULT, BYTES_MAX),
        )
        expression = pull.filter.expression
        codes = pull.filter.codes
        offset = QueueOffset(max(pull.offset, 0))
        begun = self._monotonic_s()
        with self._store.read(key, offset, limit, tags_codes=codes) as result:
            self._stats.get_took(self._monotonic_s() - begun)
            pieces = (
                result.spans
                if expression is None
                else _matching(result, expression, self._monotonic_s)
            )
            status = self._status(key, result, offset)
            if status is ReadStatus.NOT_READY:
                self._await_read(key, pull, result, may_wait=may_wait)
                return
            may_wait = may_wait and pull.may_suspend
            if status is ReadStatus.FOUND and not pieces:
                status = ReadStatus.NO_MATCHED_MESSAGE
            nothing = status in (
                ReadStatus.OFFSET_OVERFLOW_ONE,
                ReadStatus.NO_MATCHED_LOGIC_QUEUE,
                ReadStatus.NO_MESSAGE_IN_QUEUE,
            ) and (offset == 0 or status is ReadStatus.OFFSET_OVERFLOW_ONE)
            if nothing and self._catch_up():
                self._serve(key, pull, may_wait=may_wait)
                return
            if may_wait and nothing:
                self._park(key, pull)
                return
            if status is ReadStatus.NO_MATCHED_MESSAGE and may_wait:
                pull.offset = result.next_offset
                if result.next_offset < result.max_offset or pull.offset == offset:
                    self._respond(pull, status, result, [])
                else:
                    self._park(key, pull)
                return
            self._respond(pull, status, result, pieces)

    def _status(self, key: QueueKey, result: ReadResult, offset: QueueOffset) -> ReadStatus:
        """The status to respond with. A consumer is sent to another offset only if it is certain
        that there is no message: a slave may lack messages of its master, and a master may have
        messages that are not visible here yet."""
        status = result.status
        if status is ReadStatus.FOUND:
            return status
        lacks = self.group.lacks_messages
        if offset > result.max_offset and (lacks or offset <= self._store.assigned_end(key)):
            result.next_offset = offset
            return ReadStatus.OFFSET_OVERFLOW_ONE
        if not lacks:
            return status
        if status in _EMPTY:
            result.next_offset = offset
            return ReadStatus.OFFSET_OVERFLOW_ONE
        if status is ReadStatus.OFFSET_TOO_SMALL:
            result.next_offset = offset
            return ReadStatus.MESSAGE_WAS_REMOVING  # the client retries, at the master
        return status

    def _where_next(self, result: ReadResult) -> int:
        where_next = self.group.where_next
        if where_next is None:
            return MASTER_ID
        # Also if a filter matched nothing: the reader goes on from there.
        reached = result.reached
        return where_next(0 if reached is None else self._store.log.end - reached)

    def _await_read(
        self, key: QueueKey, pull: PendingPull, result: ReadResult, *, may_wait: bool
    ) -> None:
        """Park a pull until its messages can be read or its deadline passes. A pull that does not
        wait for new messages waits as well, for as long as short polling: without a pause the
        client would repeat it in a loop."""
        assert isinstance(result, PendingRead)
        if not pull.deadline:
            pull.deadline = self._monotonic_s() + self._config.short_polling_ms / 1000
            may_wait = not self.waiters.is_full
        if not may_wait:
            self._respond(pull, result.status, result, [])
            return
        pull.is_reading = True
        self._park(key, pull)

        def repeat() -> None:
            pull.is_reading = False
            self.waiters.wake(key, pull)

        result.when_ready(repeat)

    def _park(self, key: QueueKey, pull: PendingPull) -> None:
        if self.waiters.of_peer(pull.peer) >= HELD_PER_PEER_MAX:
            raise RequestRejected(
                ResponseCode.FLOW_CONTROL,
                f"{HELD_PER_PEER_MAX} pulls of this connection wait already; retry in a second, "
                "or use another connection",
            )
        self.waiters.park(key, pull)

    def _respond(
        self, pull: PendingPull, status: ReadStatus, result: ReadResult, pieces: list[memoryview]
    ) -> None:
        size = sum(map(len, pieces))
        if size:
            request = pull.request
            self._stats.got(request.topic, request.consumer_group, result.count, size)
        else:
            self._stats.missed()
        head = head_of(pull, status, result, size=size, where_next=self._where_next(result))
        # The only copy of the messages after the read.
        pull.peer.send(b"".join((head, *pieces)))

    # Waking

    def arrived(self, run: QueueUnits) -> None:
        """Resume the pulls that wait for a queue whose messages became visible."""
        self.waiters.arrived(run.queue)

    def tick(self) -> None:
        """Respond to the pulls whose deadline has passed."""
        self.waiters.expire(self._monotonic_s())


def _matching(
    result: ReadResult, expression: Expression, monotonic_s: Callable[[], float]
) -> list[memoryview]:
    """The records whose properties match the expression, as many as fit into `FILTER_S_MAX`."""
    pieces: list[memoryview] = []
    deadline = monotonic_s() + FILTER_S_MAX
    for span in result.spans:
        at = 0
        for message in decode_all(span):
            end = at + message.total_size
            if monotonic_s() > deadline:
                result.next_offset = QueueOffset(message.queue_offset)
                return pieces
            if expression.matches(bytes(message.stored_properties)):
                pieces.append(span[at:end])
            at = end
    return pieces
