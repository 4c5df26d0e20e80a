"""How administration reaches brokers and name servers: one of them, or every master."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.pulling import PullAnswer, read_answer, records_of, untrusted
from tianzhou.client.core.routing import MASTER, TopicRoute
from tianzhou.client.errors import (
    BrokerNotFound,
    GroupNotExist,
    NoRoute,
    RequestCodeNotSupported,
    remote_error,
)
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import OffsetResponse, PullMessageRequest
from tianzhou.wire.codec import ExtFields, Header
from tianzhou.wire.names import PULL_SUBSCRIPTION, TOOLS_GROUP
from tianzhou.wire.nameserver_bodies import NameServerView, decode_nameserver_view
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.tables import SubscriptionGroupConfig, decode_group_table, decode_topic_list

MASTER_ADDRESS: Final = "masterAddr"
"""Header field of a response: the address of the broker to send the request to instead."""


class AdminCalls:
    """Requests of the admin client to name servers and brokers.

    Owner: the event loop.
    """

    def __init__(self, shared: SharedClient) -> None:
        self.shared = shared
        self.left_out: frozenset[str] = frozenset()
        """Brokers skipped in requests to all brokers, because they do not respond."""

    # Brokers and routes

    async def places(self) -> list[BrokerPlace]:
        """Return every broker of the cluster, by name."""
        table = await self.shared.nameservers.cluster_table()
        return [
            BrokerPlace(broker.cluster, name, dict(broker.broker_addrs))
            for name, broker in sorted(table.broker_addr_table.items())
        ]

    async def nameservers(self) -> tuple[dict[str, NameServerView], dict[str, str]]:
        """Return the missing brokers that each NameServer reports, by address, and the NameServers
        that do not respond, with the reason. Apache's NameServers do not report missing brokers.
        """
        found: dict[str, NameServerView] = {}
        silent: dict[str, str] = {}

        async def one(address: str) -> None:
            try:
                _, body = await self.ask(address, RequestCode.VIEW_NAMESERVER)
                found[address] = decode_nameserver_view(body)
            except RequestCodeNotSupported:
                return
            except TianzhouError as error:
                silent[address] = str(error)

        await asyncio.gather(*map(one, self.shared.nameservers.addresses))
        return found, silent

    async def masters(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return addresses of masters by broker name: all, or those named. Raises NoRoute, and
        BrokerNotFound for a name that is not registered.
        """
        known = {
            place.name: place.addresses[MASTER]
            for place in await self.places()
            if MASTER in place.addresses and place.name not in self.left_out
        }
        if not known:
            raise NoRoute("the name server knows no broker; is one running, and registered?")
        if names is None:
            return known
        missing = [name for name in names if name not in known]
        if missing:
            raise BrokerNotFound(missing, known)
        return {name: known[name] for name in names}

    async def topics(self) -> tuple[str, ...]:
        """Return every topic that the name server knows. Raises RemoteError."""
        servers = self.shared.nameservers
        header, body = await servers.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        if header.code != ResponseCode.SUCCESS:
            raise remote_error(servers.current, header.code, header.remark)
        return decode_topic_list(body).topic_list

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, from the name server. Raises TopicNotFound."""
        return await self.shared.refresh(topic)

    async def masters_of(self, topic: str) -> dict[str, str]:
        """Return the masters that have the topic. Raises TopicNotFound."""
        route = await self.route(topic)
        return {
            name: held[MASTER]
            for name, held in route.brokers.items()
            if MASTER in held and name not in self.left_out
        }

    # Requests

    async def ask(
        self, address: str, code: int, fields: ExtFields | None = None, body: bytes = b""
    ) -> tuple[Header, bytes]:
        """Return a successful response. If a replica responds with the address of its master, the
        request is sent to the master, once. Raises RemoteError."""
        ext = fields.to_ext() if fields is not None else {}
        shared = self.shared
        timeout_s = shared.options.call_timeout_s
        header, answer = await shared.call(address, code, ext, body, timeout_s=timeout_s)
        master = header.ext.get(MASTER_ADDRESS)
        if header.code == ResponseCode.SERVICE_NOT_AVAILABLE and master and master != address:
            return await shared.call_ok(master, code, ext, body)
        if header.code != ResponseCode.SUCCESS:
            raise remote_error(address, header.code, header.remark)
        return header, answer

    async def ask_each(
        self,
        addresses: Mapping[str, str],
        code: int,
        fields: ExtFields | None = None,
        body: bytes = b"",
    ) -> dict[str, bytes]:
        """Send a request to all addresses concurrently; return the bodies by broker name."""
        answers = await asyncio.gather(
            *(self.ask(address, code, fields, body) for address in addresses.values())
        )
        return {name: data for name, (_, data) in zip(addresses, answers, strict=True)}

    async def group_configs(
        self, group: str, masters: dict[str, str]
    ) -> dict[str, SubscriptionGroupConfig]:
        """Return the group's settings by broker name. Raises GroupNotExist if no broker has the
        group.
        """
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        tables = {
            name: decode_group_table(body).subscription_group_table
            for name, body in (await self.ask_each(masters, code)).items()
        }
        # Only RocketMQ 5 and later can return a single group.
        configs = {name: table[group] for name, table in tables.items() if group in table}
        if not configs:
            raise GroupNotExist(
                ", ".join(masters.values()),
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} does not exist",
            )
        return configs

    async def offset(self, address: str, code: int, fields: ExtFields) -> int:
        header, _ = await self.ask(address, code, fields)
        return OffsetResponse.from_ext(header.ext).offset

    # Reading

    async def pull(
        self, address: str, queue: MessageQueue, offset: int, count: int
    ) -> tuple[PullAnswer, list[MessageView]]:
        """Return messages from an offset on; fewer if they are large. Raises RemoteError."""
        fields = PullMessageRequest(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        timeout_s = self.shared.options.call_timeout_s
        header, body = await self.shared.call(
            address, RequestCode.PULL_MESSAGE, fields.to_ext(), timeout_s=timeout_s
        )
        with untrusted(queue, offset):
            answer = read_answer(header, body)
        if answer is None:
            raise remote_error(address, header.code, header.remark)
        with untrusted(queue, offset):
            records = records_of(answer.body, asked=offset, topic=queue.topic)
            return answer, [MessageView(records.buffer, start) for start in records.starts]

    async def read(
        self, address: str, queue: MessageQueue, *, start: int, end: int, count: int
    ) -> list[MessageView]:
        """Return at most `count` messages with offsets from `start` to before `end`."""
        found: list[MessageView] = []
        while start < end and len(found) < count:
            answer, messages = await self.pull(address, queue, start, count - len(found))
            found += [message for message in messages if message.queue_offset < end]
            if answer.next_offset <= start:
                break
            start = answer.next_offset
        return found
