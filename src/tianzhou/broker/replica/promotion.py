"""Role changes of a broker in a master-slave group: promotion, stepping down, replacement.

An operator promotes a slave to the master of a new epoch. The old master learns of that from a
NameServer; it then follows the new master, and sets aside messages that no slave confirmed.
`roles.py` has the order of the effects; this file executes them.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.replica.ack_policy import AckPolicy
from tianzhou.broker.replica.following import Following, MasterWatch, Membership
from tianzhou.broker.replica.mode import Announcement, Host, NameServerReport
from tianzhou.broker.replica.role_change import (
    LOST_CLAIM,
    Claim,
    LocalRole,
    RoleMachine,
    name_topics_of_queues,
    next_epoch,
)
from tianzhou.broker.replica.roles import Effect, Event, State
from tianzhou.broker.role import Role
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.ha_master import HaMaster
from tianzhou.store.errors import StoreError
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import MASTER_ID

log: Final = logging.getLogger("tianzhou.replication")


class RoleChanges:
    """Owner: the broker loop. A `Promotion`.

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
        if role_state.is_master or not saved.value.role or self.claimed is not None:
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
            Effect.RETURN_OFFSETS: lambda: self._host.offsets.keep_uncommitted({}),
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
        self._own.saved.update(role=Role.SLAVE.value, broker_id=self._slave_id)

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
