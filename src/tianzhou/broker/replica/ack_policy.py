"""How many replicas a master's responses wait for. The number may change while it runs.

A sender that already got its response got the guarantee of that time; a sender that waits gets the
present one. Messages that readers have seen stay visible.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.broker.role import RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import Durability
from tianzhou.replication.ha_master import HaMaster
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.replication")


class ReplicaCount:
    """The number of replicas, the master's own included, that hold a message before it is
    acknowledged: as configured, as changed at run time, or as inherited from the last master.

    Owner: the broker loop.
    """

    def __init__(self, settings: ReplicationConfig, saved: SavedState) -> None:
        self.settings = self._configured = settings
        self._saved = saved

    @property
    def needed(self) -> int:
        """A promoted slave keeps the guarantee that its master gave."""
        given = self.settings.copies
        return self._saved.value.copies if given is None else given

    @property
    def lowest(self) -> int:
        """The lowest number to which `inSyncReplicas` may be set while this broker runs."""
        configured = self._configured
        return configured.in_sync_replicas_min or self.configured or self._saved.value.copies

    @property
    def configured(self) -> int:
        """The number from the settings, or from the master that was followed, before any change at
        run time."""
        given = self._configured.copies
        return self._saved.value.copies_min if given is None else given

    @property
    def waits(self) -> bool:
        return self.needed > 1

    @property
    def shown(self) -> ReplicationConfig:
        """The settings that apply now: a slave, promoted or not, uses its master's number."""
        if self.settings.copies is not None:
            return self.settings
        return replace(self.settings, in_sync_replicas=self.needed)

    def adopt(self, settings: ReplicationConfig, role_state: RoleState) -> None:
        """Apply settings that differ from `shown`. Raises RequestRejected, and then nothing
        changed."""
        count, before = settings.in_sync_replicas, self.shown.in_sync_replicas
        if count != before:
            check_replica_count(role_state, self.settings, count, least=self.lowest)
            self._saved.update(copies=count)
            level = logging.WARNING if count < before else logging.INFO
            log.log(level, "copies.changed", extra={"copies": count, "before": before})
        self.settings = settings

    def alarms(self, name: str, role_state: RoleState, since: Since) -> Iterator[Alarm]:
        """An alarm while an operator has lowered the number below the configured one."""
        wanted = self.configured
        is_lower = role_state.is_master and self.needed < wanted
        since_ms = since.began_ms("copies_lowered", holds=is_lower)
        if is_lower:
            yield Alarm(
                kind="copies_lowered",
                text=f"{name} acknowledges a message once {self.needed} of the {wanted} "
                "configured copies hold it: inSyncReplicas was lowered at run time",
                remedy=f"`tianzhou broker config {name} --set inSyncReplicas={wanted}`",
                since_ms=since_ms,
                is_problem=False,
            )


class AckPolicy:
    """Applies the number of replicas to the log, its readers and its slaves.

    Owner: the broker loop.

    Invariant: `durability` waits for `master` only while more than one replica is required
    """

    def __init__(
        self,
        store: MessageStore,
        durability: Durability,
        master: HaMaster,
        settle: Callable[[], None],
    ) -> None:
        """`settle` writes gathered messages, and releases responses that need not wait longer."""
        self._store = store
        self._durability = durability
        self._master = master
        self._settle = settle
        self._count = 1

    def begin(self, count: int, timeout_s: float) -> None:
        """Wait for slaves from now on; everything that the log holds already is confirmed."""
        self._master.begin()
        self._apply(count, timeout_s)

    def change(self, count: int, timeout_s: float) -> None:
        """Wait for another number of replicas. Slaves connect again, because they must learn how to
        confirm, and which number to keep if they are promoted. Until then, responses say
        that slaves are missing."""
        if count == self._count:
            self._durability.limit_wait(timeout_s)
            return
        self._settle()
        if count > 1 and self._durability.replicas is not None:
            self._apply(count, timeout_s)
            self._master.acked()
        else:
            # Responses did not wait for slaves before, or do not from now on: nothing that is in
            # the log waits for them.
            self._master.begin()
            self._settle()
            self._apply(count, timeout_s)
        self._master.drop_all()

    def _apply(self, count: int, timeout_s: float) -> None:
        self._count, waits = count, count > 1
        self._master.require(max(1, count - 1), hurries=waits)
        self._durability.wait_for(self._master if waits else None, timeout_s)
        self._store.limit_visible(self._visible if waits else None)

    def end(self) -> None:
        """Another broker is the master now."""
        self._durability.wait_for(None, self._durability.replicas_timeout_s)
        self._store.limit_visible(None)

    def _visible(self) -> PhysicalOffset:
        """Up to where slaves confirmed the log. While too few slaves are connected, senders learn
        that, and readers see everything, as with asynchronous replication."""
        return self._store.log.end if self._master.missing() else self._master.replicated


def check_replica_count(
    role_state: RoleState, settings: ReplicationConfig, count: int, *, least: int
) -> None:
    """Check whether responses may wait for this number of replicas from now on. Raises
    RequestRejected."""
    if not role_state.is_master:
        where = role_state.master_address or "which is away"
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"this broker is a slave: its master, {where}, says how many copies it waits for",
        )
    if settings.role is BrokerRole.ASYNC_MASTER:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            "this broker waits for no slave, however many copies are wanted; start it with "
            "brokerRole = SYNC_MASTER",
        )
    if count < least:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"inSyncReplicas can't be lowered to {count} while the broker runs; the least is "
            f"{least}: change it, or minInSyncReplicas, in the settings file and restart",
        )
