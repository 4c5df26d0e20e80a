"""Brokers and clusters: who there is, how they are, their settings, and taking one out."""

import asyncio
from collections.abc import Mapping
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.client.core.admin_results import BrokerPlace, BrokerStatus, Traffic
from tianzhou.client.core.subscription import is_internal_group
from tianzhou.client.core.views import missing_together
from tianzhou.client.errors import BrokerNotFound, NoRoute
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import GetConsumeStatsRequest, ViewStatsRequest
from tianzhou.wire._generated_headers_nameserver import BrokerNameRequest
from tianzhou.wire.admin_bodies import (
    BrokerStats,
    ProducerClient,
    decode_acknowledged,
    decode_broker_stats,
    decode_producer_table,
)
from tianzhou.wire.names import DEAD_LETTER_PREFIX, PERM_READ_WRITE
from tianzhou.wire.nameserver_bodies import MissingBroker
from tianzhou.wire.queues import decode_consume_stats
from tianzhou.wire.tables import decode_group_table, decode_kv_table

READ_ONLY: Final = 4


class Brokers:
    """Owner: the event loop."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(self) -> list[BrokerPlace]:
        """Every broker that the name server knows, by name."""
        return await self._calls.places()

    async def missing(self) -> list[MissingBroker]:
        """Brokers that disappeared without unregistering, as remembered by any NameServer."""
        looks, _ = await self._calls.nameservers()
        return missing_together(looks.values())

    async def forget(self, name: str) -> None:
        """Make every NameServer forget a missing broker that was retired. Raises BrokerNotFound if
        none of them reports it missing, RemoteError if one refuses."""
        looks, silent = await self._calls.nameservers()
        holders = [at for at, look in looks.items() if name in {row.name for row in look.missing}]
        if not holders:
            known = {row.name for row in missing_together(looks.values())}
            raise BrokerNotFound([name], known)
        fields = BrokerNameRequest(broker_name=name)
        for address in holders:
            await self._calls.ask(address, RequestCode.FORGET_BROKER, fields)
        if silent:
            told = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
            raise NoRoute(f"forgotten, except by NameServers that did not respond: {told}")

    async def status(self, name: str) -> BrokerStatus:
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _status(name, address, decode_kv_table(body).table)

    async def statuses(self) -> list[BrokerStatus]:
        """Of every master, asked at once."""
        masters = await self._calls.masters()
        bodies = await self._calls.ask_each(masters, RequestCode.GET_BROKER_RUNTIME_INFO)
        return [
            _status(name, masters[name], decode_kv_table(body).table)
            for name, body in bodies.items()
        ]

    async def statistic(self, name: str, statistic: str, key: str) -> BrokerStats:
        """One of RocketMQ's statistics, for example TOPIC_PUT_NUMS of a topic, or GROUP_GET_NUMS
        of `topic@group`: over the last minute, hour and day."""
        fields = ViewStatsRequest(stats_name=statistic, stats_key=key)
        code = RequestCode.VIEW_BROKER_STATS_DATA
        _, body = await self._calls.ask(await self._address(name), code, fields)
        return decode_broker_stats(body)

    async def producers(self, name: str) -> dict[str, list[ProducerClient]]:
        """Producers that are connected, by group."""
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_producer_table(body).data

    # Settings

    async def config(self, name: str) -> dict[str, str]:
        """All settings, by RocketMQ's names."""
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_BROKER_CONFIG)
        lines = (line.partition("=") for line in body.decode().splitlines())
        return {key.strip(): value.strip() for key, sign, value in lines if sign}

    async def configure(self, name: str, settings: Mapping[str, str]) -> None:
        """Change settings while the broker runs; all, or none of them."""
        for key, value in settings.items():
            if "\n" in key + value or "=" in key or not key:
                raise UsageError(f"setting {key!r} = {value!r} is not one line of name and value")
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        address = await self._address(name)
        await self._calls.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    async def acknowledge(self, name: str) -> dict[str, list[str]]:
        """Close the incidents that the master and slaves of broker NAME reported when they started.
        Returns the closed incidents by address."""
        places = [place for place in await self._calls.places() if place.name == name]
        if not places:
            await self._address(name)  # raises with a list of the known brokers
        closed: dict[str, list[str]] = {}
        for address in (one for place in places for one in place.addresses.values()):
            _, body = await self._calls.ask(address, RequestCode.ACKNOWLEDGE_INCIDENTS)
            closed[address] = decode_acknowledged(body)
        return closed

    # Taking one out

    async def stop_writes(self, name: str) -> str:
        """Producers send elsewhere from now on, and what is there can be read; the address."""
        return await self._permit(name, READ_ONLY)

    async def allow_writes(self, name: str) -> str:
        """The other way round."""
        return await self._permit(name, PERM_READ_WRITE)

    async def _permit(self, name: str, bits: int) -> str:
        address = await self._address(name)
        text = b"brokerPermission=%d\n" % bits
        await self._calls.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=text)
        return address

    async def traffic(self, name: str) -> Traffic:
        """Who still writes to a broker, and which groups have not read all of it."""
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        status = _status(name, address, decode_kv_table(body).table)
        _, body = await self._calls.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = decode_group_table(body).subscription_group_table
        groups = [group for group in table if not is_internal_group(group)]
        lags = await asyncio.gather(*(self._lag(address, group) for group in groups))
        behind = {group: lag for group, lag in zip(groups, lags, strict=True) if lag}
        return Traffic(status.put_per_second, behind)

    async def _lag(self, address: str, group: str) -> int:
        fields = GetConsumeStatsRequest(consumer_group=group)
        _, body = await self._calls.ask(address, RequestCode.GET_CONSUME_STATS, fields)
        return sum(
            max(row.broker_offset - row.consumer_offset, 0)
            for queue, row in decode_consume_stats(body).offset_table.items()
            if not queue.topic.startswith(DEAD_LETTER_PREFIX)
        )

    async def _address(self, name: str) -> str:
        return (await self._calls.masters([name]))[name]


def _status(name: str, address: str, facts: Mapping[str, str]) -> BrokerStatus:
    return BrokerStatus(
        name=name,
        address=address,
        version=facts.get("brokerVersionDesc", ""),
        is_active=facts.get("brokerActive", "true") == "true",
        started_ms=int(_number(facts, "bootTimestamp")),
        put_per_second=_number(facts, "putTps"),
        get_per_second=_number(facts, "getTransferredTps", "getTransferedTps"),
        put_today=int(
            _number(facts, "msgPutTotalTodayNow") - _number(facts, "msgPutTotalTodayMorning")
        ),
        disk_used_ratio=_number(facts, "commitLogDiskRatio"),
        refusal=facts.get("writeRefusedBecause", ""),
        facts=facts,
    )


def _number(facts: Mapping[str, str], *names: str) -> float:
    """Rates have three numbers, of which the first is of the last seconds."""
    for name in names:
        numbers = facts.get(name, "").split()
        if numbers:
            return float(numbers[0])
    return 0.0  # a broker that has just started knows none
