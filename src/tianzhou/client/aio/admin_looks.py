"""Pages of a dashboard: one request to each broker, whatever there is on it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import Bytes
from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.client.core.looks import Looked, groups_together, topics_together
from tianzhou.client.errors import GroupNotExist, TopicNotExist, TopicNotFound
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import GroupRequest, TopicRequest
from tianzhou.wire.fields import ExtFields
from tianzhou.wire.look_bodies import (
    BrokerLook,
    GroupLook,
    GroupRow,
    GroupsLook,
    TopicLook,
    TopicRow,
    TopicsLook,
    decode_broker_look,
    decode_group_look,
    decode_groups_look,
    decode_topic_look,
    decode_topics_look,
)

T = TypeVar("T")


class Looks:
    """Owner: the event loop. Brokers that do not answer are named beside those that do."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def brokers(self) -> Looked[BrokerLook]:
        """Rates, disks, busy topics, groups in trouble, what watchdogs found."""
        return await self._ask(RequestCode.LOOK_AT_BROKER, decode_broker_look)

    async def topics(self) -> tuple[list[TopicRow], Looked[TopicsLook]]:
        """All topics, those of the brokers included; and who was asked."""
        looked = await self._ask(RequestCode.LOOK_AT_TOPICS, decode_topics_look)
        rows = topics_together(row for look in looked.found.values() for row in look.topics)
        return rows, looked

    async def groups(self) -> tuple[list[GroupRow], Looked[GroupsLook]]:
        """All groups, those of the brokers included; and who was asked."""
        looked = await self._ask(RequestCode.LOOK_AT_GROUPS, decode_groups_look)
        rows = groups_together(row for look in looked.found.values() for row in look.groups)
        return rows, looked

    async def topic(self, name: str) -> Looked[TopicLook]:
        """Raises TopicNotFound if no broker has it."""
        fields = TopicRequest(topic=name)
        looked = await self._ask(RequestCode.LOOK_AT_TOPIC, decode_topic_look, fields)
        if not looked.found and not looked.missing:
            raise TopicNotFound(name, "no broker has it")
        return looked

    async def group(self, name: str) -> Looked[GroupLook]:
        """Raises GroupNotExist if no broker has it."""
        fields = GroupRequest(group=name)
        looked = await self._ask(RequestCode.LOOK_AT_GROUP, decode_group_look, fields)
        if not looked.found and not looked.missing:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise GroupNotExist("every broker", code, f"group {name} does not exist")
        return looked

    async def _ask(
        self, code: int, decode: Callable[[Bytes], T], fields: ExtFields | None = None
    ) -> Looked[T]:
        masters = await self._calls.masters()
        missing: dict[str, str] = {}

        async def one(name: str, address: str) -> T | None:
            try:
                _, body = await self._calls.ask(address, code, fields)
            except (TopicNotExist, GroupNotExist):
                return None  # other brokers may have it
            except TianzhouError as error:
                missing[name] = str(error)
                return None
            return decode(body)

        answers = await asyncio.gather(*(one(name, masters[name]) for name in masters))
        found = {n: a for n, a in zip(masters, answers, strict=True) if a is not None}
        return Looked(found, missing)
