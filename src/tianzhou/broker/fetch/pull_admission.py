"""Admission of pulls: whether a group may read a queue, and with which filter."""

from typing import Final, NamedTuple

from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.groups.sessions import EVERYTHING, TAG, Filter, Filters, Sessions
from tianzhou.broker.role import Permission
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.heartbeat import MessageModel
from tianzhou.wire.names import (
    PERM_READ,
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
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
