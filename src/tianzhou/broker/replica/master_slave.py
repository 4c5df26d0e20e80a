"""The mode of a master with slaves: the master appends messages, slaves follow its log.

`promotion.py` changes the role, `following.py` is the side of a slave, `ack_policy.py` has the
number of replicas that an acknowledgement needs.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.settings import SettingsError
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.ack_policy import AckPolicy, ReplicaCount
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.following import Following, Membership
from tianzhou.broker.replica.mode import (
    Announcement,
    Host,
    NameServerReport,
    OnCommitted,
    Promotion,
    not_raft,
)
from tianzhou.broker.replica.promotion import RoleChanges
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.broker.role import Role, RoleState
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import durability_of
from tianzhou.replication.ha_master import HaMaster, SlaveEvents, Standing, bind_for_slaves
from tianzhou.replication.ha_session import MasterFacts
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.store.commit_log import Appended
from tianzhou.store.derive import QueueUnits
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView

log: Final = logging.getLogger("tianzhou.replication")

HUNG_S: Final = 1.0
"""A master that was not scheduled for this long may have been replaced meanwhile."""
FRAME_BYTES: Final = 1024 * 1024
"""Log in one frame to a Tianzhou slave: as much as is worth a chunk."""
BACK_RATIO: Final = 0.1
"""A slave sends consumers back to the master when the unread log is smaller than the limit at which
the master sends consumers away, by this share of memory; otherwise they would alternate."""


class _ReadLimits(NamedTuple):
    away_bytes: int
    """A master sends consumers with more unread log to a slave."""
    back_bytes: int
    """A slave sends consumers with less unread log back to the master."""


class _Attached(NamedTuple):
    """The broker around this mode, once it is built."""

    host: Host
    roles: RoleChanges
    policy: AckPolicy
    settle_soon: CoalescedCall


class MasterSlave:
    """A master, or a slave that may be promoted. Owner: the broker loop."""

    def __init__(
        self, config: BrokerConfig, settings: ReplicationConfig, store: MessageStore, clock: Clock
    ) -> None:
        saved = SavedState(store)
        role, broker_id = _initial_role(settings, saved, config.broker_id)
        refused = not settings.slave_read
        self.role_state = RoleState(
            config.name, role, broker_id, saved.epoch, reads_refused=refused
        )
        self.own = Membership(
            config=config,
            store=store,
            clock=clock,
            saved=saved,
            count=ReplicaCount(settings, saved),
            role_state=self.role_state,
        )
        self.durability = durability_of(store)
        self.append: Callable[[RecordChunk], Appended] = store.append
        self.replicates_tables = False
        self.ha_address = ""
        self.master = HaMaster(
            store,
            self._facts,
            clock.monotonic_s,
            behind_bytes_max=settings.slave_behind_bytes_max,
            events=SlaveEvents(self._on_confirmed, self._on_superseded, self._on_slave_left),
        )
        memory, ratio = store.files.memory_bytes(), settings.memory_ratio
        back_bytes = int(memory * max(0.0, ratio - BACK_RATIO))
        self._limits = _ReadLimits(int(memory * ratio), back_bytes)
        self._since = Since(clock)
        self._asked = 0
        """How often NameServers were asked whether there is a later master."""
        self._ticked_s = clock.monotonic_s()
        self._broker: _Attached | None = None

    # What the rest of the broker asks

    @property
    def lacks_messages(self) -> bool:
        # Also while the master is down: it comes back with them, or a slave is promoted and knows
        # for certain that they are lost.
        return not self.role_state.is_master

    def where_next(self, unread_bytes: int) -> int:
        if not self.role_state.is_master:
            following = self.following
            is_streaming = following is not None and following.is_streaming
            is_far = unread_bytes > self._limits.back_bytes or not is_streaming
            return self.role_state.broker_id if is_far else MASTER_ID
        if unread_bytes <= self._limits.away_bytes or not self.own.count.settings.slave_read:
            return MASTER_ID
        in_sync = [
            row.broker_id for row in self.master.rows() if row.broker_id > 0 and row.is_in_sync
        ]
        return min(in_sync, default=MASTER_ID)

    def may_administer(self, what: str) -> None:
        self.role_state.check_master(what)

    def check_commit(self) -> None:
        pass

    def commit(self, then: OnCommitted) -> bool:
        return False

    def kept_progress(self) -> Progress | None:
        return None if self.following is None else self.following.progress()

    # What registration and administration ask

    def announcement(self) -> Announcement:
        return self._attached.roles.announcement()

    def on_nameserver_report(self, report: NameServerReport) -> None:
        self._attached.roles.on_report(report)

    def use_id(self, broker_id: int) -> bool:
        return self._attached.roles.use_id(broker_id)

    def view(self, alone: ReplicationView) -> ReplicationView:
        marks, is_master = self.own.saved.value.marks, self.role_state.is_master
        slave = self.following.slave if self.following is not None else None
        return msgspec.structs.replace(
            alone,
            run=marks[-1].run if marks else 0,
            copies_needed=self.own.count.needed,
            is_connected=slave is not None and slave.is_streaming,
            last_error=slave.last_error if slave is not None else "",
            lost=tuple(self.master.lost()) if is_master else (),
            master_end=slave.master_end if slave is not None else 0,
            slaves=tuple(self.master.rows()) if is_master else (),
        )

    def raft_view(self) -> RaftView | None:
        return None

    def promotion(self) -> Promotion:
        return self._attached.roles

    def raft_group(self) -> RaftGroup:
        raise not_raft()

    def change_timeout_s(self) -> float:
        return 0.0

    @property
    def shared_settings(self) -> "MasterSlave":
        return self

    @property
    def shown(self) -> ReplicationConfig:
        return self.own.count.shown

    def change(self, settings: ReplicationConfig) -> None:
        """Apply settings that differ from `shown`. Raises RequestRejected, and then nothing
        changed."""
        count = self.own.count
        count.adopt(settings, self.role_state)
        if self.role_state.is_master:
            self._attached.policy.change(count.needed, settings.slave_timeout_ms / 1000)

    def _alarms(self) -> Iterator[Alarm]:
        return self.own.count.alarms(self.own.config.name, self.role_state, self._since)

    # Lifetime

    def attach(self, host: Host) -> None:
        policy = AckPolicy(self.own.store, self.durability, self.master, host.writer.settle)
        roles = RoleChanges(self.own, host, policy, self.master)
        self._broker = _Attached(host, roles, policy, CoalescedCall(host.writer.settle))
        host.writer.written.append(self._on_written)
        host.writer.arrived.append(self._on_arrived)
        host.alarms.add(self._alarms)
        roles.start()

    @property
    def _attached(self) -> _Attached:
        assert self._broker is not None, "the broker is not built yet"
        return self._broker

    @property
    def following(self) -> Following | None:
        """The slave's side; None while this broker is the master."""
        return self._attached.roles.following

    async def join(self, host: str, port: int) -> str | None:
        """A master that was replaced while it was down must not accept messages: the broker
        registers next, before clients can connect, and a NameServer reports the later master."""
        settings, config = self.own.count.settings, self.own.config
        usual = port + 1 if config.port else 0
        bound = bind_for_slaves(config.host, settings.ha_port, usual)
        if bound is not None:
            self.ha_address = f"{settings.ha_address or host}:{bound.getsockname()[1]}"
            self.master.listen(bound)
        self._attached.roles.join()
        return self.ha_address

    async def start(self) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def close(self) -> None:
        if self.following is not None:
            await self.following.close()
        self.master.close()
        self._attached.settle_soon.cancel()

    def abort(self) -> None:
        self._attached.settle_soon.cancel()
        self._attached.roles.stop_following()
        self.master.close()

    # Events

    def tick(self) -> bool:
        now_s = self.own.clock.monotonic_s()
        if now_s - self._ticked_s > HUNG_S:
            self._on_slave_left()  # it may have left long before this master hung
        self._ticked_s = now_s
        return False

    def second(self) -> None:
        self.master.tick()
        if self.master.standing is Standing.ALONE:
            self._on_slave_left()
        self._attached.roles.retry()
        if self.following is not None:
            self.following.tick()

    def on_flushed(self) -> None:
        pass

    def on_damage(self, offset: PhysicalOffset) -> None:
        pass

    def _on_written(self) -> None:
        """The log grew, or is flushed further."""
        self.master.grown()
        if self.following is not None:
            self.following.on_written()

    def _on_arrived(self, units: QueueUnits) -> None:
        if self.following is not None:
            self.following.on_arrived(units)

    def _on_confirmed(self) -> None:
        """Slaves have more of the log: producers get their responses, then consumers see it."""
        self._attached.host.writer.release()
        self._attached.settle_soon()

    def _on_superseded(self, epoch: int) -> None:
        log.warning("master.superseded", extra={"epoch": epoch, "ours": self.role_state.epoch})
        self._attached.host.nameservers.wake()

    def _on_slave_left(self) -> None:
        """Ask the NameServers: the slave may have been promoted while this master hung. The next
        registration may be 30 s away, and until then there would be two masters. Another slave may
        still follow this one, so until a NameServer responds its reports confirm nothing."""
        if not self.role_state.is_master:
            return
        self._asked += 1
        number = self._asked

        def on_heard(is_heard: bool) -> None:
            if number == self._asked:
                self.master.stand(Standing.SURE if is_heard else Standing.ALONE)

        if self.master.standing is Standing.SURE:
            self.master.stand(Standing.ASKING)
        self._attached.host.nameservers.hear(on_heard)

    def _facts(self) -> MasterFacts | None:
        """What slaves learn of this broker; None while it is not the master."""
        if not self.role_state.is_master or self._broker is None:
            return None
        config, count = self.own.config, self.own.count
        settings, waits = count.settings, count.waits
        return MasterFacts(
            config.cluster,
            config.name,
            self.own.saved.value.marks,
            self.own.store.log.file_bytes,
            confirm_at_once=waits,
            confirm_flushed=self.durability.flush_waits and waits,
            copies=count.needed,
            copies_min=count.lowest,
            secret=settings.ha_secret,
            plain_peers=settings.plain_peers,
            plain_copies=settings.ha_plain_copies,
            plain_frame_bytes=settings.ha_frame_bytes,
            frame_bytes=FRAME_BYTES,
            heartbeat_s=settings.ha_heartbeat_ms / 1000,
            silence_s=settings.ha_silence_ms / 1000,
        )


def _initial_role(
    settings: ReplicationConfig, saved: SavedState, broker_id: int
) -> tuple[Role, int]:
    """The role and id at a start. The saved ones take precedence over the settings: a promotion
    lasts. Raises SettingsError."""
    state = saved.value
    if state.role:
        return Role(state.role), state.broker_id
    is_slave = settings.role is BrokerRole.SLAVE
    if is_slave != (broker_id > MASTER_ID):
        problem = (
            f"brokerRole is {settings.role.value}, and brokerId {broker_id}: a master has the "
            "id 0, each slave another"
        )
        raise SettingsError([problem])
    return (Role.SLAVE if is_slave else Role.MASTER), broker_id
