"""Pulling: find the stored bytes of a queue and send them as they are, now or when they come."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch.long_poll import LongPolls
from tianzhou.broker.fetch.pull_responses import PendingPull, head_of
from tianzhou.broker.groups.commit_bound import end_if_beyond
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.groups.readers import Readers
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.groups.subscriptions import EVERYTHING, TAG, Filter, Filters
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import disk_full, out_of_memory
from tianzhou.filter.sql92 import Expression
from tianzhou.net.router import REMARK_CHARS_MAX, encode_reply
from tianzhou.net.rpc import Peer, Reply, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record.layout import AT_PHYSICAL_OFFSET, INT64
from tianzhou.record.message import decode_all
from tianzhou.store.derive_record import QueueUnits
from tianzhou.store.errors import DiskFull
from tianzhou.store.read import ReadLimit, ReadResult, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import decode_header
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.frame import FrameBatch
from tianzhou.wire.header import Header, SerialiseType
from tianzhou.wire.headers_json import HeaderReader
from tianzhou.wire.heartbeat import MessageModel
from tianzhou.wire.names import (
    MASTER_ID,
    PERM_READ,
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)

COUNT_MAX: Final = 1024
"""Messages in one answer, whatever was asked for."""
BYTES_DEFAULT: Final = 256 * 1024
BYTES_MAX: Final = 4 * 1024 * 1024
FILTER_S_MAX: Final = 0.02
"""What a SQL92 filter may cost one pull; then the answer is what there is."""
HELD_PER_PEER_MAX: Final = 1_024
"""Pulls that one connection may have waiting: as many as a topic may have queues."""
SUSPEND_MS_MAX: Final = 60_000
"""Clients ask for 15 or 20 s; nobody waits for an answer longer than a minute."""

_BY_GROUP: Final = 2
log: Final = logging.getLogger("tianzhou.broker")

_BY_TOPIC: Final = 3
_BY_BROADCAST: Final = 4
_BY_SUBSCRIPTION: Final = 5
"""RocketMQ's numbers for what forbids a pull; 1 is the broker (`Permission.check_read`)."""

_READER: Final = HeaderReader(PullMessageRequest)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_EMPTY: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)


class _Admitted(NamedTuple):
    """A pull that may be served: what it lets through, and the flags that its response repeats."""

    filter: Filter
    topic_sys_flag: int
    group_sys_flag: int


class ReadGroup(Protocol):
    """Master and slaves, as readers need to know them."""

    def where_next(self, unread_bytes: int) -> int:
        """Which broker to read from next, when so much of the log lies behind what was read."""
        ...

    @property
    def lacks_messages(self) -> bool:
        """Not the master: what this broker does not have may be there, or come."""
        ...


class Pull:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        sessions: Sessions,
        permission: Permission,
        filters: Filters,
        stats: Stats,
        readers: Readers,
        catch_up: Callable[[], bool],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._sessions = sessions
        self._permission = permission
        self._filters = filters
        self._stats = stats
        self._readers = readers
        self._catch_up = catch_up
        self._monotonic_s = monotonic_s
        self.waiters = LongPolls[PendingPull](config.held_pulls_max, self._resume)
        self.group: ReadGroup | None = None
        """The other brokers with the same messages; None: there are none."""

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def one(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        """Respond to a pull, or park it. Raises HeaderError for an unreadable header."""
        if batch.serialise_types[index] == SerialiseType.JSON:
            try:
                typed = _READER.decode(batch.header(index))
            except _UNREADABLE:
                pass
            else:
                self._answer(connection, typed.opaque, SerialiseType.JSON, typed.ext)
                return
        header = decode_header(batch.header(index), batch.serialise_types[index])
        try:
            fields = PullMessageRequest.from_ext(header.ext)
        except HeaderFieldError as error:
            refused = RequestRejected(ResponseCode.INVALID_PARAMETER, str(error))
            self._refuse(connection, header.opaque, header.serialise_type, refused)
        else:
            self._answer(connection, header.opaque, header.serialise_type, fields)

    def _commit(self, peer: Peer, request: PullMessageRequest) -> None:
        """Take the offset that came with a pull. One beyond the end of the queue is ignored: the
        response is about the messages, and must not fail."""
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        end = end_if_beyond(self._store, topic, queue_id, request.commit_offset)
        if end is None:
            self._offsets.put(group, topic, queue_id, request.commit_offset)
            return
        log.warning(
            "offset.ignored",
            extra={
                "group": group, "topic": topic, "queue": queue_id, "peer": peer.remote,
                "offset": request.commit_offset, "end": end,
            },
        )  # fmt: skip

    def _answer(
        self, peer: Peer, opaque: int, serialise_type: SerialiseType, request: PullMessageRequest
    ) -> None:
        try:
            found = self._check(request)
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
            peer, opaque, serialise_type, request, found.filter, request.queue_offset, deadline,
            found.topic_sys_flag, found.group_sys_flag,
        )  # fmt: skip
        self._resume(key, pull, may_wait)

    def _resume(self, key: QueueKey, pull: PendingPull, may_wait: bool) -> None:
        """Whatever goes wrong concerns this pull alone, not whose message woke it."""
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

    # Checks, in RocketMQ's order

    def _check(self, request: PullMessageRequest) -> _Admitted:
        """Raises RequestRejected."""
        self._permission.check_read()
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
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {request.topic[:128]} does not exist"
            )
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
        return _Admitted(found, topic.topic_sys_flag, group.group_sys_flag)

    def _subscribed(self, request: PullMessageRequest, *, broadcast_allowed: bool) -> Filter:
        """By what the group told us in its heartbeats."""
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

    # Reading

    def _serve(self, key: QueueKey, pull: PendingPull, *, may_wait: bool) -> None:
        """Answer with what there is; without anything, park it if it may wait."""
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
                    self._reply(pull, status, result, [])
                else:
                    self._park(key, pull)
                return
            self._reply(pull, status, result, pieces)

    def _status(self, key: QueueKey, result: ReadResult, offset: QueueOffset) -> ReadStatus:
        """Who reads on is corrected only where it is certain that there is nothing. A slave may
        lack what its master has, and a master may have what only others can show already."""
        status = result.status
        if status is ReadStatus.FOUND:
            return status
        lacks = self.group is not None and self.group.lacks_messages
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
            return ReadStatus.MESSAGE_WAS_REMOVING  # tried again, at the master
        return status

    def _where_next(self, pieces: list[memoryview]) -> int:
        if self.group is None:
            return MASTER_ID
        unread = 0
        if pieces:
            (place,) = INT64.unpack_from(pieces[-1], AT_PHYSICAL_OFFSET)
            unread = self._store.log.end - place
        return self.group.where_next(unread)

    def _park(self, key: QueueKey, pull: PendingPull) -> None:
        if self.waiters.of_peer(pull.peer) >= HELD_PER_PEER_MAX:
            raise RequestRejected(
                ResponseCode.FLOW_CONTROL,
                f"{HELD_PER_PEER_MAX} pulls of this connection wait already; retry in a second, "
                "or use another connection",
            )
        self.waiters.park(key, pull)

    def _reply(
        self, pull: PendingPull, status: ReadStatus, result: ReadResult, pieces: list[memoryview]
    ) -> None:
        size = sum(map(len, pieces))
        if size:
            request = pull.request
            self._stats.got(request.topic, request.consumer_group, result.count, size)
        else:
            self._stats.missed()
        head = head_of(pull, status, result, size=size, where_next=self._where_next(pieces))
        # One copy: the bytes must leave the mapped file before the lease ends.
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
    """The records whose properties the expression lets through; as many as there is time for."""
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


def forbidden(kind: int, remark: str) -> RequestRejected:
    """A pull that is not permitted, with RocketMQ's number for what forbids it."""
    return RequestRejected(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})
