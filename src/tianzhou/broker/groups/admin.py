"""Administration of consumer groups: create, update, list and delete them, and forbid topics."""

import logging
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.broker import names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.topics import QUEUES_MAX
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    DeleteGroupRequest,
    GetAllGroupConfigRequest,
    GetAllGroupConfigResponse,
    GroupForbiddenRequest,
    GroupRequest,
    GroupTopicRequest,
)
from tianzhou.wire.admin_bodies import (
    GroupForbidden,
    GroupSubscription,
    decode_group_config_list,
)
from tianzhou.wire.tables import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    decode_data_version,
    decode_group_config,
)

log: Final = logging.getLogger("tianzhou.broker")

RETRIES_MAX: Final = 100_000
"""A limit, so that a message that no consumer can process becomes a dead letter eventually."""


@dataclass(slots=True)
class AdminGroups:
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    stats: Stats

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of,
        }

    # Changes

    def update(self, request: Request) -> Reply:
        self._put([decode_group_config(request.body)], request)
        return Reply()

    def update_list(self, request: Request) -> Reply:
        self._put(list(decode_group_config_list(request.body).group_config_list), request)
        return Reply()

    def _put(self, asked: list[SubscriptionGroupConfig], request: Request) -> None:
        """Store all groups or none: each is checked before the first is stored."""
        for group in asked:
            self._check(group)
        self.groups.put(*asked)
        for group in asked:
            log.info("group.updated", extra={"group": group.group_name, "peer": _from(request)})

    def _check(self, group: SubscriptionGroupConfig) -> None:
        name = self._own_name(group.group_name)
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            raise _invalid(f"group {name} can't have {group.retry_queue_nums} retry queues")
        if not -1 <= group.retry_max_times <= RETRIES_MAX:
            raise _invalid(f"group {name} can't retry {group.retry_max_times} times")
        if group.attributes:
            raise _invalid(f"group {name}: no attribute of groups is known here")

    def _own_name(self, name: str) -> str:
        try:
            names.checked_group(name)
        except UsageError as error:
            raise _invalid(str(error)) from error
        if names.is_system_group(name):
            raise _invalid(
                f"group {name} is internal to the broker; it cannot be changed or deleted"
            )
        return name

    def delete(self, request: Request) -> Reply:
        """Delete a group. A missing group is not an error: tools send the request to every
        broker."""
        asked = DeleteGroupRequest.from_ext(request.header.ext)
        name = self._own_name(asked.group_name)
        self.groups.remove(name)
        self.stats.group_deleted(name)
        if asked.clean_offset:
            self.offsets.remove_group(name)
            self.offsets.save()
        log.info("group.deleted", extra={"group": name, "peer": _from(request)})
        return Reply()

    def forbid(self, request: Request) -> Reply:
        """Allow or forbid a group to read a topic, if the request says so; returns whether it
        may."""
        asked = GroupForbiddenRequest.from_ext(request.header.ext)
        group, topic = asked.group or "", asked.topic or ""
        if not group or not topic:
            raise _invalid("a group and a topic must be named")
        if asked.readable is not None:
            self._get(group)
            _check_topic(topic)
            self.groups.allow_read(group, topic, allowed=asked.readable)
            log.info(
                "group.forbidden",
                extra={"group": group, "topic": topic, "peer": _from(request)},
            )
        readable = self.groups.may_read(group, topic)
        return Reply(
            body=fastjson.encode(GroupForbidden(group=group, topic=topic, readable=readable))
        )

    # Queries

    def all(self, request: Request) -> Reply:
        """The whole table, or a page of it when the request has numbers."""
        asked = GetAllGroupConfigRequest.from_ext(request.header.ext)
        table = self.groups.table()
        if asked.max_group_num is None:
            return Reply(body=fastjson.encode(table))
        start = max(asked.group_seq or 0, 0)
        if asked.data_version and (
            decode_data_version(asked.data_version.encode()) != table.data_version
        ):
            start = 0  # the table changed between two pages: restart with the first
        rows = sorted(table.subscription_group_table.items())
        page = dict(islice(rows, start, start + max(asked.max_group_num, 0)))
        body = SubscriptionGroupTable(
            data_version=table.data_version,
            forbidden_table=table.forbidden_table,
            subscription_group_table=page,
        )
        gives = GetAllGroupConfigResponse(total_group_num=len(rows))
        return Reply(ext=gives.to_ext(), body=fastjson.encode(body))

    def group_config(self, request: Request) -> Reply:
        """The group, created now if groups are created automatically: RocketMQ's Proxy asks for
        groups before any consumer of them connects."""
        name = GroupRequest.from_ext(request.header.ext).group
        try:
            names.checked_group(name)
        except UsageError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
        group = self.groups.obtain(name) or self._get(name)
        return Reply(body=fastjson.encode(group))

    def topics_of(self, request: Request) -> Reply:
        """Topics that the group has consumed."""
        group = GroupRequest.from_ext(request.header.ext).group
        found = tuple(sorted(self.offsets.topics_of(group)))
        return Reply(body=fastjson.encode(TopicList(topic_list=found)))

    def subscription_of(self, request: Request) -> Reply:
        """The subscription of the group to a topic; empty if no member is connected."""
        asked = GroupTopicRequest.from_ext(request.header.ext)
        members = self.sessions.consumers.get(asked.group)
        found = members.subscriptions.get(asked.topic) if members else None
        body = GroupSubscription(group=asked.group, topic=asked.topic, subscription_data=found)
        return Reply(body=fastjson.encode(body))

    def _get(self, name: str) -> SubscriptionGroupConfig:
        group = self.groups.get(name)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name[:128]} does not exist"
            )
        return group


def _check_topic(name: str) -> None:
    try:
        names.checked_topic(name)
    except UsageError as error:
        raise _invalid(str(error)) from error


def _from(request: Request) -> str:
    return request.peer.remote


def _invalid(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.INVALID_PARAMETER, why)
