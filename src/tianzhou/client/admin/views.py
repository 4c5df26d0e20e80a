"""Views for the dashboard: one request to each broker for each page."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import Bytes
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.admin.timers import WaitingTimer
from tianzhou.client.admin.transactions import ParkedTransaction, PendingTransaction
from tianzhou.client.core.admin_results import LATEST, BrokerPlace
from tianzhou.client.core.views import (
    ClusterView,
    LightQueueTotal,
    PerBroker,
    groups_together,
    light_queues_together,
    topics_together,
)
from tianzhou.client.errors import (
    BrokerNotFound,
    GroupNotExist,
    NoRoute,
    TopicNotExist,
    TopicNotFound,
)
from tianzhou.record.message import MessageView, decode_all
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    ListWaitingRequest,
    TopicRequest,
    ViewBrokerRequest,
    ViewGroupRequest,
    ViewLightQueuesRequest,
    ViewMessagesRequest,
)
from tianzhou.wire.admin_bodies import (
    HalfMessages,
    TimedMessages,
    decode_half_messages,
    decode_timed_messages,
)
from tianzhou.wire.codec import ExtFields
from tianzhou.wire.view_bodies import (
    BrokerView,
    GroupRow,
    GroupsView,
    GroupView,
    LightQueuesView,
    TopicRow,
    TopicsView,
    TopicView,
    decode_broker_view,
    decode_group_view,
    decode_groups_view,
    decode_light_queues_view,
    decode_topic_view,
    decode_topics_view,
)

T = TypeVar("T")


class Views:
    """Views of brokers, topics and groups: everything that a page of the dashboard shows.

    Brokers that do not respond are listed as missing instead of raising an error. All methods raise
    NoRoute if no broker is registered, except `cluster`.

        views = await admin.views.brokers()
        print(sorted(views.found), views.missing)

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def brokers(self) -> PerBroker[BrokerView]:
        """Return rates, disks, busy topics, groups with problems and watchdog events."""
        return await self._ask(RequestCode.VIEW_BROKER, decode_broker_view)

    async def cluster(self, skip: Collection[str] = ()) -> ClusterView:
        """Return the state that every broker process reports.

        Slaves and Raft followers are included. Addresses in `skip` are left out. Empty if the name
        server knows no broker.
        """
        places = tuple(await self._calls.places())
        addresses = [at for place in places for at in place.addresses.values() if at not in skip]
        members: dict[str, BrokerView] = {}
        missing: dict[str, str] = {}

        async def one(address: str) -> None:
            try:
                _, body = await self._calls.ask(address, RequestCode.VIEW_BROKER)
                members[address] = decode_broker_view(body)
            except TianzhouError as error:
                missing[address] = str(error)

        (nameservers, silent), _ = await asyncio.gather(
            self._calls.nameservers(), asyncio.gather(*map(one, addresses))
        )
        groups: list[GroupRow] = []
        if members and any(view.missing for view in nameservers.values()):
            groups, _ = await self.groups()
        return ClusterView(
            places, members, missing, nameservers=nameservers, silent=silent, groups=tuple(groups)
        )

    async def broker(self, name: str) -> tuple[BrokerView, BrokerPlace]:
        """Return one broker with all its facts and settings, and the addresses of its group.

        Raises BrokerNotFound.
        """
        place = _known(name, await self._calls.places())
        fields = ViewBrokerRequest(is_whole=True)
        _, body = await self._calls.ask(place.nearest, RequestCode.VIEW_BROKER, fields)
        return decode_broker_view(body), place

    async def topics(self) -> tuple[list[TopicRow], PerBroker[TopicsView]]:
        """Return all topics, including system topics, and the response of each broker."""
        responses = await self._ask(RequestCode.VIEW_TOPICS, decode_topics_view)
        rows = topics_together(row for view in responses.found.values() for row in view.topics)
        return rows, responses

    async def groups(self) -> tuple[list[GroupRow], PerBroker[GroupsView]]:
        """Return all groups, including system groups, and the response of each broker."""
        responses = await self._ask(RequestCode.VIEW_GROUPS, decode_groups_view)
        rows = groups_together(row for view in responses.found.values() for row in view.groups)
        return rows, responses

    async def topic(self, name: str) -> PerBroker[TopicView]:
        """Return one topic as each broker reports it. Raises TopicNotFound if no broker has it."""
        fields = TopicRequest(topic=name)
        responses = await self._ask(RequestCode.VIEW_TOPIC, decode_topic_view, fields)
        if not responses.found and not responses.missing:
            raise TopicNotFound(name, "no broker has it")
        return responses

    async def light_queues(
        self, like: str = "", *, count: int = 1_000
    ) -> tuple[list[LightQueueTotal], PerBroker[LightQueuesView]]:
        """Return the first light queues with a text in their name, and the response of each broker.

        A queue that several brokers have is in the list once, with the sum of its messages.
        """
        fields = ViewLightQueuesRequest(count=count, like=like or None)
        code = RequestCode.VIEW_LIGHT_QUEUES
        responses = await self._ask(code, decode_light_queues_view, fields)
        rows = [row for view in responses.found.values() for row in view.queues]
        return light_queues_together(rows)[:count], responses

    async def group(
        self,
        name: str,
        *,
        move_in: str | None = None,
        time_ms: int = LATEST,
        queues_max: int | None = None,
        queues_like: str = "",
    ) -> PerBroker[GroupView]:
        """Return one group as each broker reports it. Raises GroupNotExist if no broker has it.

        With `move_in`, the views contain the effect of a reset to `time_ms` in this topic. Each
        broker returns the `queues_max` queues with the largest lag, of topics whose name contains
        `queues_like`.
        """
        fields = ViewGroupRequest(
            group=name,
            topic=move_in,
            timestamp_ms=time_ms,
            queues_max=queues_max,
            queues_like=queues_like,
        )
        responses = await self._ask(RequestCode.VIEW_GROUP, decode_group_view, fields)
        if not responses.found and not responses.missing:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise GroupNotExist("every broker", code, f"group {name} does not exist")
        return responses

    async def timers(self, *, count: int) -> tuple[list[WaitingTimer], PerBroker[TimedMessages]]:
        """Return the next timers of each broker, and the response of each broker."""
        fields = ListWaitingRequest(count=count)
        responses = await self._ask(RequestCode.LIST_TIMERS, decode_timed_messages, fields)
        found = [
            WaitingTimer(name, message)
            for name, view in responses.found.items()
            for message in view.messages
        ]
        return sorted(found, key=lambda timer: timer.message.deliver_timestamp), responses

    async def transactions(
        self, *, count: int
    ) -> tuple[list[PendingTransaction], PerBroker[HalfMessages]]:
        """Return the oldest pending transactions of each broker, and the responses."""
        fields = ListWaitingRequest(count=count)
        responses = await self._ask(RequestCode.LIST_HALF_MESSAGES, decode_half_messages, fields)
        found = [
            PendingTransaction(name, half)
            for name, view in responses.found.items()
            for half in view.messages
        ]
        return sorted(found, key=lambda pending: pending.half.store_timestamp), responses

    async def parked(
        self, *, count: int
    ) -> tuple[list[ParkedTransaction], PerBroker[HalfMessages]]:
        """Return the oldest parked transactions of each broker, and the responses."""
        fields = ListWaitingRequest(count=count)
        responses = await self._ask(RequestCode.LIST_PARKED_MESSAGES, decode_half_messages, fields)
        found = [
            ParkedTransaction(name, half)
            for name, view in responses.found.items()
            for half in view.messages
        ]
        return sorted(found, key=lambda parked: parked.half.store_timestamp), responses

    async def messages(
        self, wanted: ViewMessagesRequest, *, broker: str | None = None
    ) -> tuple[list[MessageView], PerBroker[bytes]]:
        """Return messages of a topic on one broker or all, oldest first, and the responses.

        Raises TopicNotFound.
        """
        responses = await self._ask(RequestCode.VIEW_MESSAGES, bytes, wanted, only=broker)
        if not responses.found and not responses.missing:
            raise TopicNotFound(wanted.topic, "no broker has it")
        found = [message for records in responses.found.values() for message in decode_all(records)]
        found.sort(key=lambda message: (message.store_timestamp, message.physical_offset))
        return found, responses

    async def _ask(
        self,
        code: int,
        decode: Callable[[Bytes], T],
        fields: ExtFields | None = None,
        *,
        only: str | None = None,
    ) -> PerBroker[T]:
        places = await self._calls.places()
        nearest = {
            place.name: place.nearest for place in places if place.name not in self._calls.left_out
        }
        if not nearest:
            raise NoRoute("the name server knows no broker; is one running, and registered?")
        if only is not None:
            nearest = {only: _known(only, places).nearest}
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

        answers = await asyncio.gather(*(one(name, nearest[name]) for name in nearest))
        found = {n: a for n, a in zip(nearest, answers, strict=True) if a is not None}
        return PerBroker(found, missing)


def _known(name: str, places: Iterable[BrokerPlace]) -> BrokerPlace:
    known = {place.name: place for place in places}
    if name not in known:
        raise BrokerNotFound([name], known)
    return known[name]
