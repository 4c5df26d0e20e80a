"""Brokers and clusters: list and inspect brokers, change their settings, and retire one."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.core.admin_results import BrokerPlace, BrokerStatus, Traffic
from tianzhou.client.core.subscription import is_internal_group
from tianzhou.client.core.views import missing_together
from tianzhou.client.errors import BrokerNotFound, ClientError, NoRoute
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import (
    CleaningRequest,
    GetConsumeStatsRequest,
    ViewStatsRequest,
)
from tianzhou.wire._generated_headers_nameserver import BrokerNameRequest
from tianzhou.wire.admin_bodies import (
    BrokerStats,
    CleaningView,
    ProducerClient,
    decode_acknowledged,
    decode_broker_stats,
    decode_cleaning_view,
    decode_producer_table,
)
from tianzhou.wire.names import DEAD_LETTER_PREFIX, PERM_READ_WRITE
from tianzhou.wire.nameserver_bodies import MissingBroker
from tianzhou.wire.queues import decode_consume_stats
from tianzhou.wire.tables import decode_group_table, decode_kv_table

READ_ONLY: Final = 4
REMOVED_S: Final = 30.0
_POLL_S: Final = 0.1


class Brokers:
    """Brokers: list and inspect them, change their settings, and retire one (`admin.brokers`).

        for broker in await admin.brokers.statuses():
            print(broker.name, broker.put_per_second, broker.disk_used_ratio)

    Methods that take the `name` of a broker raise BrokerNotFound if no name server knows it.

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(self) -> list[BrokerPlace]:
        """Return every broker that the name server knows, sorted by name. Raises NoNameServer."""
        return await self._calls.places()

    async def missing(self) -> list[MissingBroker]:
        """Return brokers that disappeared without unregistering, as any NameServer remembers."""
        views, _ = await self._calls.nameservers()
        return missing_together(views.values())

    async def forget(self, name: str) -> None:
        """Make every NameServer forget a missing broker that was retired.

        Raises BrokerNotFound if no NameServer reports it missing, RemoteError if one rejects the
        request, and NoRoute if the others forgot the broker but one did not respond.
        """
        views, silent = await self._calls.nameservers()
        holders = [at for at, view in views.items() if name in {row.name for row in view.missing}]
        if not holders:
            known = {row.name for row in missing_together(views.values())}
            raise BrokerNotFound([name], known)
        fields = BrokerNameRequest(broker_name=name)
        for address in holders:
            await self._calls.ask(address, RequestCode.FORGET_BROKER, fields)
        if silent:
            reasons = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
            raise NoRoute(f"forgotten, except by NameServers that did not respond: {reasons}")

    async def status(self, name: str, *, address: str | None = None) -> BrokerStatus:
        """Return the state of a master: version, rates, disk use and whether it accepts messages.

        With `address` it is the state of the broker there, such as a slave of `name`. Raises
        BrokerNotFound, and RemoteError if the broker rejects the request.
        """
        if address is None:
            address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _status(name, address, decode_kv_table(body).table)

    async def statuses(self) -> list[BrokerStatus]:
        """Return the state of every master. The requests are sent concurrently."""
        masters = await self._calls.masters()
        bodies = await self._calls.ask_each(masters, RequestCode.GET_BROKER_RUNTIME_INFO)
        return [
            _status(name, masters[name], decode_kv_table(body).table)
            for name, body in bodies.items()
        ]

    async def statistic(self, name: str, statistic: str, key: str) -> BrokerStats:
        """Return one of RocketMQ's statistics over the last minute, hour and day.

        `statistic` is a name such as TOPIC_PUT_NUMS, and `key` what it counts: a topic, or
        `topic@group` for GROUP_GET_NUMS. Raises BrokerNotFound, and RemoteError if the broker does
        not have the statistic.

            stats = await admin.brokers.statistic("broker-a", "TOPIC_PUT_NUMS", "orders")
        """
        fields = ViewStatsRequest(stats_name=statistic, stats_key=key)
        code = RequestCode.VIEW_BROKER_STATS_DATA
        _, body = await self._calls.ask(await self._address(name), code, fields)
        return decode_broker_stats(body)

    async def producers(self, name: str) -> dict[str, list[ProducerClient]]:
        """Return the connected producers, by group. Raises BrokerNotFound."""
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_producer_table(body).data

    # Settings

    async def config(self, name: str) -> dict[str, str]:
        """Return all settings of a broker, by RocketMQ's names. Raises BrokerNotFound."""
        address = await self._address(name)
        _, body = await self._calls.ask(address, RequestCode.GET_BROKER_CONFIG)
        lines = (line.partition("=") for line in body.decode().splitlines())
        return {key.strip(): value.strip() for key, sign, value in lines if sign}

    async def configure(
        self, name: str, settings: Mapping[str, str], *, members: bool = False
    ) -> None:
        """Change settings while the broker runs: all of them, or none.

        Each slave and each member of a Raft group has its own settings; `members` changes those of
        all of them instead of the master's alone. Raises UsageError for a name or value that is not
        a single line, BrokerNotFound, and RemoteError if a broker rejects a setting.

            await admin.brokers.configure("broker-a", {"fileReservedTime": "48"})
        """
        for key, value in settings.items():
            if "\n" in key + value or "=" in key or not key:
                raise UsageError(f"setting {key!r} = {value!r} is not one line of name and value")
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        addresses = await self._members(name) if members else [await self._address(name)]
        for address in addresses:
            await self._calls.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    async def acknowledge(self, name: str) -> dict[str, list[str]]:
        """Close the incidents that the master and slaves of a broker reported when they started.

        Returns the closed incidents by address. Raises BrokerNotFound.
        """
        closed: dict[str, list[str]] = {}
        for address in await self._members(name):
            _, body = await self._calls.ask(address, RequestCode.ACKNOWLEDGE_INCIDENTS)
            closed[address] = decode_acknowledged(body)
        return closed

    # Cleaning

    async def cleaning(
        self, name: str, *, keep_hours: int | None = None
    ) -> dict[str, CleaningView]:
        """Return what `clean` would remove now, by address of the broker and its replicas.

        Raises BrokerNotFound, and RemoteError if a broker does not support this.
        """
        master = await self._address(name)
        found = {master: await self._view_cleaning(master, keep_hours, None)}
        for address in await self._members(name):
            if address != master:
                # Only the master knows what its replicas still need.
                below = found[master].until
                found[address] = await self._view_cleaning(address, keep_hours, below)
        return found

    async def clean(self, name: str, *, keep_hours: int | None = None) -> dict[str, CleaningView]:
        """Remove expired log files of a broker and its replicas, and topics without settings.

        Messages of the last `keep_hours` stay, or those within the retention if it is None; the
        setting does not change. A file stays as long as it has a younger message, or one that waits
        for delivery or that a replica does not have. Waits until the files are removed, and returns
        what was removed, by address. Raises BrokerNotFound, RemoteError if a broker rejects the
        request, and ClientError if files remain after 30 seconds.

            removed = await admin.brokers.clean("broker-a", keep_hours=24)
        """
        shown = await self.cleaning(name, keep_hours=keep_hours)
        master = next(iter(shown))
        until = shown[master].until
        if shown[master].unused_topics:
            await self._calls.ask(master, RequestCode.CLEAN_UNUSED_TOPIC)
        fields = CleaningRequest(keep_hours=keep_hours, below=until)
        removed: dict[str, CleaningView] = {}
        for address in shown:
            _, body = await self._calls.ask(address, RequestCode.CLEAN_LOG, fields)
            view = decode_cleaning_view(body)
            topics = shown[address].unused_topics
            removed[address] = msgspec.structs.replace(view, unused_topics=topics)
        for address, view in removed.items():
            await self._wait_until_removed(address, view.until)
        return removed

    async def _view_cleaning(
        self, address: str, keep_hours: int | None, below: int | None
    ) -> CleaningView:
        fields = CleaningRequest(keep_hours=keep_hours, below=below)
        _, body = await self._calls.ask(address, RequestCode.VIEW_CLEANING, fields)
        return decode_cleaning_view(body)

    async def _wait_until_removed(self, address: str, until: int) -> None:
        """A broker removes files once a checkpoint covers what was derived from them."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + REMOVED_S
        while (await self._view_cleaning(address, None, until)).begin < until:
            if loop.time() > deadline_s:
                raise ClientError(
                    f"{address} has not removed its files up to offset {until} within "
                    f"{REMOVED_S:.0f} s; check its log"
                )
            await asyncio.sleep(_POLL_S)

    # Retiring a broker

    async def stop_writes(self, name: str) -> str:
        """Make a broker read-only: producers use other brokers, consumers can still read.

        Returns the address of the broker. Raises BrokerNotFound.
        """
        return await self._permit(name, READ_ONLY)

    async def allow_writes(self, name: str) -> str:
        """Undo `stop_writes`. Returns the address of the broker. Raises BrokerNotFound."""
        return await self._permit(name, PERM_READ_WRITE)

    async def _permit(self, name: str, bits: int) -> str:
        address = await self._address(name)
        text = b"brokerPermission=%d\n" % bits
        await self._calls.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=text)
        return address

    async def traffic(self, name: str) -> Traffic:
        """Return the rate of writes to a broker, and the lag of each group that is behind.

        A broker without either can be shut down. Raises BrokerNotFound.
        """
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

    async def _members(self, name: str) -> list[str]:
        """The addresses of a broker and its replicas, by broker id: the master first."""
        places = [place for place in await self._calls.places() if place.name == name]
        if not places:
            await self._address(name)  # raises with a list of the known brokers
        return [address for place in places for _, address in sorted(place.addresses.items())]

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
    """Return the first of several numbers: rates have three, and the first is the latest."""
    for name in names:
        numbers = facts.get(name, "").split()
        if numbers:
            return float(numbers[0])
    return 0.0  # a broker that has just started reports no rates
