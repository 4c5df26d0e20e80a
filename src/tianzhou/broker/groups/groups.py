"""Subscription groups: permissions of their consumers, and how often a message is retried."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.rpc import RequestRejected
from tianzhou.store.errors import StoreError
from tianzhou.store.tables import Table
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.tables import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

_FORBIDDEN_READ: Final = 1 << 2
"""Bit of a row of the forbidden table, as RocketMQ numbers it."""


class Groups:
    """Owner: the broker loop."""

    def __init__(
        self,
        table: Table[SubscriptionGroupTable],
        config: BrokerConfig,
        clock: Clock,
        *,
        is_replica: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_replica` returns whether only another broker currently may create groups."""
        self._table = table
        self._is_replica = is_replica
        self._config = config
        self._clock = clock
        stored = table.load()
        self._groups = dict(stored.subscription_group_table)
        self._forbidden = dict(stored.forbidden_table)
        self.version: DataVersion = stored.data_version
        self.deleted: list[Callable[[str], None]] = []
        """Called after a group was removed, so that other parts drop their state of it."""
        for name in names.SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))
        for name in self._groups:
            names.checked_group(name)  # the table may have been edited by hand

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        return self._groups

    def table(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            data_version=self.version,
            forbidden_table=self._forbidden,
            subscription_group_table=self._groups,
        )

    def obtain(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created now if automatic creation is on. A replica creates nothing: it serves
        the group with default settings until its master replicates the group. The flush thread
        saves it; if a crash loses the group, the next request for it creates it again."""
        found = self._groups.get(name)
        if found is None and (self._config.auto_create_groups or names.is_system_group(name)):
            found = SubscriptionGroupConfig(group_name=checked(name))
            if not self._is_replica():
                self.put(found, wait=False)
        return found

    def obtain_all(self, wanted: list[str]) -> list[SubscriptionGroupConfig]:
        """Return the groups with these names; missing ones are created if automatic creation is on.
        Saved like those of `obtain`: members recreate them with their next heartbeat."""
        if self._config.auto_create_groups and not self._is_replica():
            fresh = [name for name in wanted if name not in self._groups]
            self.put(*(SubscriptionGroupConfig(group_name=name) for name in fresh), wait=False)
        return [self._groups[name] for name in wanted if name in self._groups]

    def put(self, *groups: SubscriptionGroupConfig, wait: bool = True) -> None:
        """Create or update groups, all or none. Without `wait` the flush thread saves
        them."""
        wanted = {checked(group.group_name): group for group in groups}
        fresh = len(wanted.keys() - self._groups.keys())
        if fresh and len(self._groups) + fresh > self._config.groups_max:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"there are {len(self._groups)} groups already; groups_max allows "
                f"{self._config.groups_max}: delete some, or raise it",
            )
        if any(self._groups.get(name) != group for name, group in wanted.items()):
            before, self._groups = self._groups, self._groups | wanted
            try:
                self._save(wait=wait)
            except StoreError:
                self._groups = before
                raise

    def follow(self, master: SubscriptionGroupTable) -> None:
        """Adopt the master's table on a slave."""
        if master.data_version == self.version:
            return
        self._groups = dict(master.subscription_group_table)
        self._forbidden = dict(master.forbidden_table)
        self.version = master.data_version
        self._table.save(self.table())

    def remove(self, name: str) -> bool:
        was_there = self._groups.pop(name, None) is not None
        if self._forbidden.pop(name, None) is not None or was_there:
            self._save()
        for notify in self.deleted:
            notify(name)
        return was_there

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Topics that a group may not read."""
        return self._forbidden

    def forbid(self, rows: Mapping[str, dict[str, int]], removed: Iterable[str]) -> None:
        """Adopt forbidden topics from another broker; `removed` are groups without any."""
        wanted = {name: row for name, row in self._forbidden.items() if name not in set(removed)}
        wanted |= rows
        if wanted != self._forbidden:
            self._forbidden = wanted
            self._save()

    def may_read(self, group: str, topic: str) -> bool:
        return not self._forbidden.get(group, {}).get(topic, 0) & _FORBIDDEN_READ

    def allow_read(self, group: str, topic: str, *, allowed: bool) -> None:
        """Allow a group to read a topic, or forbid it."""
        if self.may_read(group, topic) == allowed:
            return
        row = dict(self._forbidden.get(group, {}))
        if len(row) >= self._config.topics_max and topic not in row:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"group {group} is forbidden to read {len(row)} topics already, as many as "
                "topics_max allows; allow some of them first",
            )
        row[topic] = row.get(topic, 0) ^ _FORBIDDEN_READ
        row = {name: bits for name, bits in row.items() if bits}
        self._forbidden[group] = row
        if not row:
            del self._forbidden[group]
        self._save()

    def _save(self, *, wait: bool = True) -> None:
        self.version = DataVersion(
            counter=self.version.counter + 1,
            state_version=self.version.state_version,
            timestamp=self._clock.now_ms(),
        )
        save = self._table.save if wait else self._table.save_later
        save(self.table())


def check_commit(name: str) -> None:
    """Raises RequestRejected for a group whose offsets no client may set: half messages below the
    progress of transactions count as decided, so an offset from a client would lose them."""
    if name.startswith(names.SYSTEM_GROUP_PREFIX):
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"the offsets of group {name[:128]} are progress of the broker itself; "
            "use a group of your own",
        )


def checked(name: str) -> str:
    """The name, if a group may have it. Raises RequestRejected."""
    try:
        return names.checked_group(name)
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
