"""A broker in its group: what it was, whom it follows, who follows it, and how that changes.

The master appends and slaves follow its log. A promotion by hand makes a slave the master of a new
epoch; the old master follows it when it hears of that, and sets aside what nobody confirmed.

This is one file because every change of the role changes the same few fields together.
"""

import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.settings import SettingsError
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.replica.ack_policy import AckPolicy, check_promises
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.host import ReplicaParts
from tianzhou.broker.replica.role_change import LOST_CLAIM, Claim, name_topics_of_queues, next_epoch
from tianzhou.broker.replica.slave_sync import SlaveSync, Tables
from tianzhou.broker.role import Role, RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import Durability
from tianzhou.replication.ha_agreement import check_master, settle_log
from tianzhou.replication.ha_frames import Hello, Welcome
from tianzhou.replication.ha_master import HaMaster, bind_for_slaves
from tianzhou.replication.ha_session import MasterFacts
from tianzhou.replication.ha_slave import HaSlave, SlaveSettings
from tianzhou.replication.ha_state import probe_of, state_table
from tianzhou.store.derive_record import QueueUnits
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.replication_bodies import ReplicationView

log: Final = logging.getLogger("tianzhou.replication")

FRAME_BYTES: Final = 1024 * 1024
"""Log in one frame to a slave of ours: as much as is worth a chunk."""
BACK_RATIO: Final = 0.1
"""A slave sends consumers back when so much less is unread than what made the master send them, so
that they do not go to and fro."""


class Host(NamedTuple):
    """What the group needs of the broker."""

    parts: ReplicaParts
    durability: Durability
    take_role: Callable[[Role, int, int], None]
    address: str
    """Where it serves clients."""


class MasterSlave:
    """Owner: the broker loop. A `Follower` of the master while it is a slave."""

    def __init__(
        self, config: BrokerConfig, settings: ReplicationConfig, store: MessageStore, clock: Clock
    ) -> None:
        self._config = config
        self.settings = self._configured = settings
        self._store = store
        self._clock = clock
        self._since = Since(clock)
        self._table = state_table(store.files, store.paths.tables)
        self._state = self._table.load()
        self.role_state = RoleState(config.name, *self._first_role())
        self._host: Host | None = None
        self._promise: AckPolicy | None = None
        self._settle_soon = CoalescedCall(lambda: None)
        self.master = HaMaster(
            store, self._facts, clock.monotonic_s,
            behind_bytes_max=settings.slave_behind_bytes_max,
        )  # fmt: skip
        self.slave: HaSlave | None = None
        self._sync: SlaveSync | None = None
        memory = store.files.memory_bytes()
        self._away_bytes = int(memory * settings.memory_ratio)
        self._back_bytes = int(memory * max(0.0, settings.memory_ratio - BACK_RATIO))
        self._ha_target = settings.ha_master_address
        self._master_greets = False
        """Whether a NameServer reports that the master runs Tianzhou."""
        self.ha_address = ""
        self.ask_nameservers: Callable[[], None] = lambda: None
        """Register now: the answer tells who the master is."""
        self.hear_nameservers: Callable[[Callable[[], None]], None] = lambda then: then()
        """The same, and call the callback when all have responded or timed out."""
        self.claimed: Claim | None = None

    def _first_role(self) -> tuple[Role, int, int]:
        """What was saved counts more than the settings: a promotion lasts."""
        state, settings, broker_id = self._state, self.settings, self._config.broker_id
        epoch = epochs.epoch_of(state.marks)
        if state.role:
            return Role(state.role), state.broker_id, epoch
        is_slave = settings.role is BrokerRole.SLAVE
        if is_slave != (broker_id > MASTER_ID):
            problem = (
                f"brokerRole is {settings.role.value}, and brokerId {broker_id}: a master has the "
                "id 0, each slave another"
            )
            raise SettingsError([problem])
        return (Role.SLAVE if is_slave else Role.MASTER), broker_id, epoch

    # Starting and ending

    def attach(self, host: Host) -> None:
        """The broker is put together; if it is the master, it is so from now on."""
        self._host = host
        settle = host.parts.writer.settle
        self._promise = AckPolicy(self._store, host.durability, self.master, settle)
        self._settle_soon = CoalescedCall(settle)
        self.master.on_confirmed = self._confirmed
        self.master.on_superseded = self._superseded
        self.master.on_left = self._slave_left
        host.parts.writer.written.append(self._written)
        host.parts.writer.arrived.append(self._arrived)
        host.parts.pull.group = self
        host.parts.replication.group = self
        host.parts.alarms.add(self.alarms)
        self.role_state.reads_refused = not self.settings.slave_read
        if self.role_state.is_master:
            self._begin_as_master()

    def _begin_as_master(self) -> None:
        """Leave a mark in the history of the log if its end may be another than it was."""
        end, marks, token = self._store.log.end, self._state.marks, secrets.token_hex(4)
        if not marks:
            marks = epochs.first(token)
        elif not self._store.was_clean:
            marks = epochs.restarted(marks, end, token=token)
        self._remember(
            role=Role.MASTER.value, broker_id=MASTER_ID, marks=marks,
            epoch_token=self._state.epoch_token or token,
        )  # fmt: skip
        self.role_state.epoch = epochs.epoch_of(marks)
        self._promised.begin(self._copies, self.settings.slave_timeout_ms / 1000)

    @property
    def _promised(self) -> AckPolicy:
        assert self._promise is not None
        return self._promise

    @property
    def _copies(self) -> int:
        """A slave that was promoted keeps the promise that its master made."""
        return self._state.copies if self.settings.copies is None else self.settings.copies

    @property
    def copies_min(self) -> int:
        """The lowest number of copies to which `inSyncReplicas` may be set while this broker
        runs."""
        said = self._configured
        own = self._state.copies_min if said.copies is None else said.copies
        return said.in_sync_replicas_min or own or self._state.copies

    @property
    def _copies_configured(self) -> int:
        """The number of copies from the settings, or from the master that was followed, before any
        change at run time."""
        said = self._configured
        return self._state.copies_min if said.copies is None else said.copies

    def alarms(self) -> Iterator[Alarm]:
        """An alarm while an operator has lowered the number of copies below the configured one."""
        wanted = self._copies_configured
        is_lower = self.role_state.is_master and self._copies < wanted
        since_ms = self._since.began_ms("copies_lowered", holds=is_lower)
        if is_lower:
            name = self._config.name
            yield Alarm(
                kind="copies_lowered",
                text=f"{name} acknowledges a message once {self._copies} of the {wanted} "
                "configured copies hold it: inSyncReplicas was lowered at run time",
                remedy=f"`tianzhou broker config {name} --set inSyncReplicas={wanted}`",
                since_ms=since_ms, is_problem=False,
            )  # fmt: skip

    @property
    def _waits(self) -> bool:
        return self._copies > 1

    def bind(self, host: str, broker_port: int) -> socket.socket | None:
        """The port for slaves; None if nobody chose one and the usual one is taken."""
        usual = broker_port + 1 if self._config.port else 0
        return bind_for_slaves(host, self.settings.ha_port, usual)

    async def start(self, bound: socket.socket | None, host: str) -> None:
        if bound is not None:
            port = bound.getsockname()[1]
            self.ha_address = f"{self.settings.ha_address or host}:{port}"
            self.master.listen(bound)
        if not self.role_state.is_master:
            self._follow()

    async def close(self) -> None:
        if self._sync is not None:
            self._sync.stop()
        if self.slave is not None:
            await self.slave.stop()
        self.master.close()
        self._settle_soon.cancel()

    def abort(self) -> None:
        self._settle_soon.cancel()
        self._stop_following()
        self.master.close()

    def _stop_following(self) -> None:
        if self._sync is not None:
            self._sync.stop()
        if self.slave is not None:
            self.slave.abort()
        self.slave = self._sync = None

    def tick(self) -> None:
        """About every second."""
        self.master.tick()
        if self.slave is not None:
            self.slave.tick()
        if self._sync is not None:
            self._sync.tick()

    def _written(self) -> None:
        """The log grew, or is flushed further."""
        self.master.grown()
        if self.slave is not None:
            self.slave.flushed()

    def _confirmed(self) -> None:
        """Slaves have more of the log: producers are answered first, then consumers see it."""
        assert self._host is not None
        self._host.parts.writer.release()
        self._settle_soon()

    def _arrived(self, run: QueueUnits) -> None:
        assert self._host is not None
        if self._sync is not None and self._host.parts.topics.get(run.queue.topic) is None:
            self._sync.soon()

    # What others say

    def heard(self, master_address: str, ha_address: str, *, greets: bool = False) -> None:
        """Handle a NameServer's report of the group's master, and whether that master runs
        Tianzhou."""
        if self.role_state.is_master or not master_address:
            return
        self._master_greets = greets
        if self._host is not None and master_address == self._host.address:
            return  # it still takes us for the master that we were
        if self._sync is not None and master_address != self.role_state.master_address:
            self._sync.soon()
        self.role_state.master_address = master_address
        if not self.settings.ha_master_address and ha_address != self._ha_target:
            self._ha_target = ha_address
            if self.slave is not None:
                self.slave.look_again()

    def outdated(self, epoch: int, free_id: int) -> None:
        """A name server knows of a later master than we are, or want to be."""
        if self.claimed is not None and epoch >= self.claimed.epoch:
            self.claimed = None
        if self.role_state.is_master and epoch >= self.role_state.epoch:
            self.step_down(free_id, reason=f"another master has, or had, epoch {epoch}")

    def heard_epoch(self, seen: int) -> None:
        """Record an epoch that a NameServer has seen: it must not be used again."""
        if not 0 < seen <= self._epoch_known + epochs.EPOCH_STEP_MAX:
            log.warning("epoch.ignored", extra={"seen": seen, "known": self._epoch_known})
        elif seen > self._state.epoch_seen:
            self._remember(epoch_seen=seen)

    @property
    def _epoch_known(self) -> int:
        return max(
            epochs.epoch_of(self._state.marks), self._state.epoch_seen, self.role_state.epoch
        )

    @property
    def epoch_token(self) -> str:
        """A token that distinguishes this master from another one with the same epoch."""
        if self.claimed is not None:
            return self.claimed.token
        return self._state.epoch_token if self.role_state.is_master else ""

    def _superseded(self, epoch: int) -> None:
        log.warning("master.superseded", extra={"epoch": epoch, "ours": self.role_state.epoch})
        self.ask_nameservers()

    def _slave_left(self) -> None:
        """Ask the NameServers: the slave may have been promoted while this master hung. The next
        registration may be 30 s away, and until then there would be two masters."""
        self.ask_nameservers()

    # Changing

    @property
    def shown(self) -> ReplicationConfig:
        """Settings as they count now: a slave, promoted or not, promises what its master did."""
        if self.settings.copies is not None:
            return self.settings
        return replace(self.settings, in_sync_replicas=self._copies)

    def change(self, settings: ReplicationConfig) -> None:
        """Take other settings than `shown`, and as the master promise by them. Raises
        RequestRejected."""
        copies, before = settings.in_sync_replicas, self.shown.in_sync_replicas
        if copies != before:
            check_promises(self.role_state, self.settings, copies, least=self.copies_min)
            self._remember(copies=copies)
            level = logging.WARNING if copies < before else logging.INFO
            log.log(level, "copies.changed", extra={"copies": copies, "before": before})
        self.settings = settings
        if self.role_state.is_master:
            self._promised.change(self._copies, settings.slave_timeout_ms / 1000)

    def when_told(self, then: Callable[[], None]) -> None:
        """Before a promotion: hear once more from the master, if it is still there."""
        if self._sync is not None and self._follows and self.role_state.master_address:
            self._sync.finish(self.role_state.master_address, lambda: self.hear_nameservers(then))
        else:
            self.hear_nameservers(then)

    def claim(self, *, above: int = 0) -> None:
        """Choose a new epoch, which the next registration announces. Raises RequestRejected."""
        if self.role_state.is_master:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "this broker is the master already")
        if self.claimed is not None:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, "this broker is already being promoted")
        self.claimed = Claim(next_epoch(self._epoch_known, above=above), secrets.token_hex(4))

    def promote(self) -> int:
        """Become the master, of the epoch that was claimed; its number. Raises RequestRejected."""
        claim, self.claimed = self.claimed, None
        if claim is None or self._epoch_known > claim.epoch or self.role_state.epoch == claim.epoch:
            self.ask_nameservers()  # those that saw the claim no longer list this slave
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, LOST_CLAIM)
        assert self._host is not None
        epoch, token = claim
        if self._sync is not None:
            self._sync.delete_rest()
        self._stop_following()
        self._own_offsets()
        self._store.flush()
        end = self._store.log.end
        marks = epochs.appointed(self._state.marks, end, token=token, epoch=epoch)
        self._remember(role=Role.MASTER.value, broker_id=MASTER_ID, marks=marks, epoch_token=token)
        self._promised.begin(self._copies, self.settings.slave_timeout_ms / 1000)
        self._host.take_role(Role.MASTER, MASTER_ID, epoch)
        name_topics_of_queues(self._host.parts, self._store)
        log.warning("broker.promoted", extra={"epoch": epoch, "end": int(end)})
        return epoch

    def step_down(self, broker_id: int, *, reason: str) -> PhysicalOffset:
        """Cease to be the master, and follow who is; where the log ends. Slaves that are connected
        get the rest of it."""
        assert self._host is not None
        if not self.role_state.is_master:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "this broker is a slave already")
        log.warning("broker.steps_down", extra={"reason": reason, "id": broker_id})
        self._remember(role=Role.SLAVE.value, broker_id=broker_id)
        self._host.take_role(Role.SLAVE, broker_id, self.role_state.epoch)
        self._promised.end()
        self.master.pump()
        # Offsets committed before this broker became the master are already part of its own table.
        AcceptedOffsets(accepted_table(self._store)).forget()
        self._follow()
        return self._store.log.end

    def _own_offsets(self) -> None:
        """Offsets that consumers committed while this broker was a slave now belong to the
        master."""
        assert self._host is not None
        self._host.parts.offsets.end_following()

    def _follow(self) -> None:
        settings = self.settings
        self.slave = HaSlave(
            self._store, self,
            SlaveSettings(
                settings.ha_secret, settings.ha_heartbeat_ms / 1000,
                settings.ha_silence_ms / 1000, settings.ha_retry_ms / 1000,
            ),
            self._clock.monotonic_s,
        )  # fmt: skip
        self.slave.start()
        assert self._host is not None
        parts = self._host.parts
        parts.offsets.begin_following(AcceptedOffsets(accepted_table(self._store)))
        parts.offsets.clamp(self._store.max_offset)
        tables = Tables(self._store, parts.topics, parts.groups, parts.offsets)
        self._sync = SlaveSync(tables, every_s=settings.metadata_ms / 1000)
        parts.floor.followed = self._sync.progress
        self._sync.start(self.role_state)

    def _remember(self, **changes: Any) -> None:
        """Update these fields of the saved state; they are durable when this returns."""
        state = msgspec.structs.replace(self._state, **changes)
        if state != self._state:
            self._table.save(state)
            self._state = state

    # What readers and operators are told

    def where_next(self, unread_bytes: int) -> int:
        if not self.role_state.is_master:
            is_far = unread_bytes > self._back_bytes or not self._follows
            return self.role_state.broker_id if is_far else MASTER_ID
        if unread_bytes <= self._away_bytes or not self.settings.slave_read:
            return MASTER_ID
        known = [
            row.broker_id for row in self.master.rows() if row.broker_id > 0 and row.is_in_sync
        ]
        return min(known, default=MASTER_ID)

    @property
    def _follows(self) -> bool:
        return self.slave is not None and self.slave.is_streaming

    @property
    def lacks_messages(self) -> bool:
        # Also while the master is away: it comes back with them, or a slave is promoted and knows
        # for certain that they are gone.
        return not self.role_state.is_master

    def look(self, alone: ReplicationView) -> ReplicationView:
        marks, slave = self._state.marks, self.slave
        rows = self.master.rows() if self.role_state.is_master else []
        return msgspec.structs.replace(
            alone,
            run=marks[-1].run if marks else 0,
            copies_needed=self._copies,
            is_connected=slave is not None and slave.is_streaming,
            last_error=slave.last_error if slave is not None else "",
            lost=tuple(self.master.lost()) if self.role_state.is_master else (),
            master_end=slave.master_end if slave is not None else 0,
            slaves=tuple(rows),
        )

    # Follower

    def master_address(self) -> str:
        return self._ha_target

    def why_not_plain(self, host: str) -> str:
        settings = self.settings
        if settings.ha_secret:
            return "with ha_secret every master must prove that it knows it"
        if not settings.plain_peers.admits(host):
            return f"{host} is not listed in ha_plain_peers as a RocketMQ broker"
        if self._state.marks:
            return "this log has a history of epochs, which a RocketMQ broker cannot continue"
        if self._master_greets:
            return "the master registered as a Tianzhou broker, which always sends a greeting"
        return ""

    def hello(self) -> Hello:
        assert self._host is not None
        end = self._store.log.end
        return Hello(
            cluster=self._config.cluster, name=self._config.name, id=self.role_state.broker_id,
            end=end if end > self._store.log.min_offset else 0,
            marks=epochs.known_at(self._state.marks, end), probe=probe_of(self._store),
            nonce=secrets.token_hex(16), address=self._host.address,
        )  # fmt: skip

    def agree(self, welcome: Welcome) -> None:
        """Make our log a beginning of the master's, and remember whose it is."""
        assert self._host is not None
        store, marks = self._store, self._state.marks
        check_master(store, marks, welcome)
        self.master.drop_all()
        settle_log(store, marks, welcome, from_last_file=self.settings.sync_from_last_file)
        self._host.parts.offsets.clamp(store.max_offset)
        self._remember(
            role=Role.SLAVE.value, broker_id=self.role_state.broker_id, marks=welcome.marks,
            copies=welcome.copies, copies_min=welcome.copies_min or welcome.copies,
        )  # fmt: skip
        self.role_state.epoch = epochs.epoch_of(welcome.marks)
        store.flush()
        if self._sync is not None:
            self._sync.soon()  # the master needs the offsets committed here meanwhile
        log.info("master.agreed", extra={"epoch": self.role_state.epoch, "end": int(store.log.end)})

    def appended(self) -> None:
        # Not at once: the master waits for our report, which leaves when we return.
        self._settle_soon()

    def lost(self) -> None:
        self.ask_nameservers()

    def _facts(self) -> MasterFacts | None:
        if not self.role_state.is_master or self._host is None:
            return None
        config, settings = self._config, self.settings
        return MasterFacts(
            config.cluster, config.name, self._state.marks, self._store.log.file_bytes,
            confirm_at_once=self._waits,
            confirm_flushed=self._host.durability.flush_waits and self._waits, copies=self._copies,
            copies_min=self.copies_min, secret=settings.ha_secret,
            plain_peers=settings.plain_peers, plain_copies=settings.ha_plain_copies,
            plain_frame_bytes=settings.ha_frame_bytes,
            frame_bytes=FRAME_BYTES, heartbeat_s=settings.ha_heartbeat_ms / 1000,
            silence_s=settings.ha_silence_ms / 1000,
        )  # fmt: skip
