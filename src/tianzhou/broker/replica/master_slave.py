"""The mode of a master with slaves: the master appends messages, slaves follow its log.

`following.py` is the side of a slave, `ack_policy.py` has the number of replicas that an
acknowledgement needs.

An operator promotes a slave to the master of a new epoch. The old master learns of that from a
NameServer; it then follows the new master, and sets aside messages that no slave confirmed.
`roles.py` has the order of the effects of a role change; `RoleChanges` executes them.

It is one file because a change of the role is a change of everything that the mode decides: who
appends, who follows, how many replicas confirm, and what NameServers are told.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.settings import SettingsError
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.replica.ack_policy import AckPolicy, ReplicaCount
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.following import Following, MasterWatch, Membership
from tianzhou.broker.replica.mode import (
    Announcement,
    Host,
    NameServerReport,
    OnCommitted,
    Promotion,
    not_raft,
)
from tianzhou.broker.replica.role_change import (
    LOST_CLAIM,
    Claim,
    LocalRole,
    RoleMachine,
    name_topics_of_queues,
    next_epoch,
)
from tianzhou.broker.replica.roles import Effect, Event, State
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.broker.role import Role, RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import durability_of
from tianzhou.replication.ha_master import HaMaster, SlaveEvents, Standing, bind_for_slaves
from tianzhou.replication.ha_session import MasterFacts
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.store.commit_log import Appended
from tianzhou.store.derive import QueueUnits
from tianzhou.store.errors import StoreError
from tianzhou.store.retention import Hold
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode
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


class RoleChanges:
    """Executes the role changes that `roles.py` decides. A `Promotion`. Owner: the broker loop.

    Invariant: `claimed` is set while the machine is in PROMOTING, unless the promotion failed and
    is not undone yet; `following` is set while it is in SLAVE or PROMOTING, after JOIN
    """

    def __init__(self, own: Membership, host: Host, policy: AckPolicy, master: HaMaster) -> None:
        self._own = own
        self._host = host
        self._policy = policy
        self._master = master
        self._local = LocalRole(
            own.store,
            own.role_state,
            writer=host.writer,
            offsets=host.offsets,
            services=host.services,
        )
        self.known_master = MasterWatch(own.count, own.saved)
        self.following: Following | None = None
        self.claimed: Claim | None = None
        self._above_epoch = 0
        """The claim must be above this epoch, which the caller of the promotion knows."""
        self._slave_id = own.role_state.broker_id
        """The id to take when this master steps down."""
        self.machine = RoleMachine(self._effects())

    def start(self) -> None:
        is_master = self._own.role_state.is_master
        self.machine.handle(Event.START_AS_MASTER if is_master else Event.START_AS_SLAVE)

    def join(self) -> None:
        """A master has nothing to follow."""
        if self.machine.allows(Event.JOIN):
            self.machine.handle(Event.JOIN)

    def retry(self) -> None:
        """Complete a step-down, or undo a promotion, that failed, for example because the disk was
        full."""
        if self.machine.allows(Event.WRITES_ENDED):
            self.machine.handle(Event.WRITES_ENDED)
        elif self.machine.allows(Event.PROMOTION_FAILED) and self.claimed is None:
            self.machine.handle(Event.PROMOTION_FAILED)

    # Promotion

    def after_final_sync(self, then: Callable[[], None]) -> None:
        """Copy the tables once more from a master that is still there, then ask the NameServers
        which epochs they have seen."""

        def register() -> None:
            self._host.nameservers.register_then(then)

        if self.following is not None:
            self.following.finish_sync(register)
        else:
            register()

    def claim(self, *, above: int = 0) -> None:
        """Choose a new epoch, which the next registration announces. Raises RequestRejected."""
        if self.machine.state is State.PROMOTING:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, "this broker is already being promoted")
        if self.machine.state is State.STEPPING_DOWN:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY, "this broker is stepping down; retry in a second"
            )
        if not self.machine.allows(Event.CLAIM):
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "this broker is the master already")
        self._above_epoch = above
        self.machine.handle(Event.CLAIM)

    def announce_claim(self, then: Callable[[], None]) -> None:
        self._host.nameservers.register_then(then)

    def promote(self) -> int:
        """Become the master of the claimed epoch; returns the epoch. Raises RequestRejected."""
        claim, epoch = self.claimed, self._own.role_state.epoch
        if claim is None or self._epoch_known > claim.epoch or epoch == claim.epoch:
            if claim is not None:
                self.machine.handle(Event.CLAIM_LOST)
            # NameServers that saw the claim no longer list this slave.
            self._host.nameservers.wake()
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, LOST_CLAIM)
        try:
            self.machine.handle(Event.CLAIM_WON)
        finally:
            if self.machine.allows(Event.PROMOTION_FAILED):
                self._undo_promotion()
        self.machine.handle(Event.PROMOTED)
        end = int(self._own.saved.value.marks[-1].start)
        log.warning("broker.promoted", extra={"epoch": claim.epoch, "end": end})
        return claim.epoch

    def _undo_promotion(self) -> None:
        """Follow again, so that the operator can promote this slave or another one later."""
        # NameServers that saw the claim list this broker as the master.
        self._host.nameservers.wake()
        try:
            self.machine.handle(Event.PROMOTION_FAILED)
        except StoreError as error:  # `retry` repeats it
            log.warning("promotion.not_undone", extra={"reason": str(error)})

    def step_down(self, broker_id: int, *, reason: str) -> PhysicalOffset:
        """Stop being the master, and follow the new one; returns the end of the log. Connected
        slaves get the rest of the log. Raises RequestRejected."""
        return self._step_down(Event.STEP_DOWN, broker_id, reason)

    def _step_down(self, event: Event, broker_id: int, reason: str) -> PhysicalOffset:
        if not self.machine.allows(event):
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "this broker is a slave already")
        log.warning("broker.steps_down", extra={"reason": reason, "id": broker_id})
        self._slave_id = broker_id
        self.machine.handle(event)
        self.machine.handle(Event.WRITES_ENDED)
        return self._own.store.log.end

    # NameServers

    def announcement(self) -> Announcement:
        if self.claimed is not None:
            epoch, token = self.claimed
            return Announcement(epoch, token, is_claim=True, has_group=True)
        role_state = self._own.role_state
        token = self._own.saved.value.epoch_token if role_state.is_master else ""
        return Announcement(role_state.epoch, token, has_group=True)

    def on_report(self, report: NameServerReport) -> None:
        role_state = self._own.role_state
        if report.epoch_seen:
            self._on_epoch_seen(report.epoch_seen)
        if report.epoch and (role_state.is_master or self.claimed is not None):
            self._on_newer_epoch(report.epoch, report.free_id)
        if report.master_address and not role_state.is_master:
            self._on_master_address(report)

    def use_id(self, broker_id: int) -> bool:
        """Take another id, if this slave has belonged to its group before: the one that it had may
        have been given to a master that stepped down. A new slave has the id of its settings."""
        role_state, saved = self._own.role_state, self._own.saved
        if saved.value.role != Role.SLAVE.value or role_state.is_master or self.claimed:
            return False
        log.warning("slave.id_changed", extra={"id": broker_id, "before": role_state.broker_id})
        self._slave_id = broker_id
        saved.update(broker_id=broker_id)
        self._become_slave()
        return True

    def _on_epoch_seen(self, seen: int) -> None:
        """Save an epoch that a NameServer has seen: it must not be used again."""
        if not 0 < seen <= self._epoch_known + epochs.EPOCH_STEP_MAX:
            log.warning("epoch.ignored", extra={"seen": seen, "known": self._epoch_known})
        elif seen > self._own.saved.value.epoch_seen:
            self._own.saved.update(epoch_seen=seen)

    def _on_newer_epoch(self, epoch: int, free_id: int) -> None:
        """A NameServer knows a later master than this broker is, or is about to be."""
        if self.claimed is not None and epoch >= self.claimed.epoch:
            self.machine.handle(Event.CLAIM_LOST)
        if self._own.role_state.is_master and epoch >= self._own.role_state.epoch:
            reason = f"another master has, or had, epoch {epoch}"
            self._step_down(Event.REPLACED, free_id, reason)

    def _on_master_address(self, report: NameServerReport) -> None:
        address, following, role_state = (
            report.master_address,
            self.following,
            self._own.role_state,
        )
        self.known_master.set_greeting(greets=report.greets)
        if address == self._host.address:
            return  # the NameServer still lists this broker as the master that it was
        if following is not None and address != role_state.master_address:
            following.on_new_master()
        role_state.set_master(address)
        if self.known_master.set_ha_address(report.ha_address) and following is not None:
            following.on_new_ha_address()

    @property
    def _epoch_known(self) -> int:
        saved = self._own.saved
        return max(saved.epoch, saved.value.epoch_seen, self._own.role_state.epoch)

    # Effects

    def _effects(self) -> dict[Effect, Callable[[], None]]:
        store, local = self._own.store, self._local
        return {
            Effect.BEGIN_WRITING: local.begin_writing,
            Effect.REFUSE_WRITES: local.refuse_writes,
            Effect.STOP_WRITING: local.stop_writing,
            Effect.BECOME_MASTER: self._become_master,
            Effect.BECOME_SLAVE: self._become_slave,
            Effect.SAVE_AS_MASTER: self._save_as_master,
            Effect.SAVE_AS_SLAVE: self._save_as_slave,
            Effect.MARK_START: self._mark_start,
            Effect.CHOOSE_EPOCH: self._choose_epoch,
            Effect.DROP_CLAIM: self._drop_claim,
            Effect.DELETE_PENDING_TOPICS: self._delete_pending_topics,
            Effect.STOP_FOLLOWING: self.stop_following,
            Effect.ADOPT_OFFSETS: self._host.offsets.end_following,
            Effect.RETURN_OFFSETS: lambda: self._host.offsets.accept_ahead_of({}),
            Effect.FLUSH_LOG: store.flush,
            Effect.BEGIN_ACKS: self._begin_acks,
            Effect.END_ACKS: self._policy.end,
            Effect.NAME_TOPICS: lambda: name_topics_of_queues(self._host.topics, store),
            Effect.SEND_REST: self._master.pump,
            Effect.FORGET_ACCEPTED_OFFSETS: self._forget_accepted_offsets,
            Effect.FOLLOW_MASTER: self._follow_master,
        }

    def _mark_start(self) -> None:
        """Add a mark to the history of the log if its end may differ from the one before."""
        store, saved, token = self._own.store, self._own.saved, secrets.token_hex(4)
        marks = saved.value.marks
        if not marks:
            marks = epochs.first(token)
        elif not store.was_clean:
            marks = epochs.restarted(marks, store.log.end, token=token)
        saved.update(
            role=Role.MASTER.value,
            broker_id=MASTER_ID,
            marks=marks,
            epoch_token=saved.value.epoch_token or token,
        )
        self._own.role_state.adopt_epoch(epochs.epoch_of(marks))

    def _choose_epoch(self) -> None:
        epoch = next_epoch(self._epoch_known, above=self._above_epoch)
        self.claimed = Claim(epoch, secrets.token_hex(4))

    def _drop_claim(self) -> None:
        self.claimed = None

    def _delete_pending_topics(self) -> None:
        if self.following is not None:
            self.following.delete_pending_topics()

    def stop_following(self) -> None:
        if self.following is not None:
            self.following.abort()
        self.following = None

    def _save_as_master(self) -> None:
        assert self.claimed is not None
        epoch, token = self.claimed
        saved, end = self._own.saved, self._own.store.log.end
        marks = epochs.appointed(saved.value.marks, end, token=token, epoch=epoch)
        saved.update(role=Role.MASTER.value, broker_id=MASTER_ID, marks=marks, epoch_token=token)

    def _save_as_slave(self) -> None:
        own, saved = self._own, self._own.saved
        marks, seen = saved.value.marks, saved.value.epoch_seen
        last = marks[-1] if marks else None
        if last and saved.value.role == Role.MASTER.value and last.epoch > own.role_state.epoch:
            # The promotion failed after it was saved. No master would accept a slave with a later
            # epoch than its own; there is nothing in the log behind this mark.
            marks, seen = marks[:-1], max(seen, last.epoch)
        saved.update(role=Role.SLAVE.value, broker_id=self._slave_id, marks=marks, epoch_seen=seen)

    def _begin_acks(self) -> None:
        count = self._own.count
        self._policy.begin(count.needed, count.settings.slave_timeout_ms / 1000)

    def _become_master(self) -> None:
        assert self.claimed is not None
        epoch, self.claimed = self.claimed.epoch, None
        self._local.publish(Role.MASTER, broker_id=MASTER_ID, epoch=epoch)

    def _become_slave(self) -> None:
        epoch = self._own.role_state.epoch
        self._local.publish(Role.SLAVE, broker_id=self._slave_id, epoch=epoch)

    def _forget_accepted_offsets(self) -> None:
        AcceptedOffsets(accepted_table(self._own.store)).forget()

    def _follow_master(self) -> None:
        self.stop_following()  # an attempt that failed halfway
        drop_slaves = self._master.drop_all
        self.following = Following(
            self._own, self._host, self.known_master, drop_slaves=drop_slaves
        )
        self.following.start()


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

    def hold(self) -> Hold | None:
        if not self.role_state.is_master:
            return None
        slaves = [*self.master.rows(), *self.master.lost()]
        holds = [Hold(one.acked, f"slave {one.broker_id} does not have them yet") for one in slaves]
        return min(holds, default=None)

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
            self._ask_nameservers()
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
        if self.master.standing is Standing.SURE:
            self.master.stand(Standing.ASKING)
        self._ask_nameservers()

    def _ask_nameservers(self) -> None:
        """Ask whether there is a later master. A question that is repeated keeps its number: any
        response since the slave left will do."""
        number = self._asked

        def on_heard(is_accepted: bool) -> None:
            if number != self._asked:
                return
            if is_accepted:
                self.master.stand(Standing.SURE)
            elif self.master.standing is Standing.ASKING:
                self.master.stand(Standing.ALONE)

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
