"""A slave's side of a master-slave group: it follows the master's log and its tables."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.replica.ack_policy import ReplicaCount
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.mode import Host
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.broker.replica.slave_sync import SlaveSync, Tables
from tianzhou.broker.role import Role, RoleState
from tianzhou.record.light_queues import is_light
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.ha_frames import Hello, Welcome
from tianzhou.replication.ha_slave import HaSlave, SlaveSettings
from tianzhou.replication.ha_state import check_master, probe_of, settle_log
from tianzhou.store.derive import QueueUnits
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a broker of a master-slave group needs in either role."""

    config: BrokerConfig
    store: MessageStore
    clock: Clock
    saved: SavedState
    count: ReplicaCount
    role_state: RoleState


class MasterWatch:
    """What a slave knows of its master, from its settings and from NameServers.

    Owner: the broker loop.
    """

    def __init__(self, count: ReplicaCount, saved: SavedState) -> None:
        self._count = count
        self._saved = saved
        self.ha_address = count.settings.ha_master_address
        """Where the master listens for slaves; empty: unknown."""
        self.greets = False
        """Whether a NameServer reports that the master runs Tianzhou."""

    def set_greeting(self, *, greets: bool) -> None:
        self.greets = greets

    def set_ha_address(self, ha_address: str) -> bool:
        """Record a NameServer's report; returns whether the address changed. The configured address
        takes precedence."""
        is_configured = bool(self._count.settings.ha_master_address)
        is_new = not is_configured and ha_address != self.ha_address
        if is_new:
            self.ha_address = ha_address
        return is_new

    def why_not_plain(self, host: str) -> str:
        """Why the master at this IP address may not be followed without a greeting; empty if it
        may."""
        settings = self._count.settings
        if settings.ha_secret:
            return "with ha_secret every master must prove that it knows it"
        if not settings.plain_peers.admits(host):
            return f"{host} is not listed in ha_plain_peers as a RocketMQ broker"
        if self._saved.value.marks:
            return "this log has a history of epochs, which a RocketMQ broker cannot continue"
        if self.greets:
            return "the master registered as a Tianzhou broker, which always sends a greeting"
        return ""


class Following:
    """Follows the master while this broker is a slave. The `Follower` of its `HaSlave`.

    Owner: the broker loop. Lives from FOLLOW_MASTER to STOP_FOLLOWING.
    """

    def __init__(
        self,
        own: Membership,
        host: Host,
        master: MasterWatch,
        *,
        drop_slaves: Callable[[], None],
    ) -> None:
        """`drop_slaves` disconnects brokers that follow this one as their master."""
        self._own = own
        self._host = host
        self._master = master
        self._drop_slaves = drop_slaves
        # The response of a master that waits for our report must leave before queues are written.
        self._settle_soon = CoalescedCall(host.writer.settle)
        settings, store = own.count.settings, own.store
        self.slave = HaSlave(
            store,
            self,
            SlaveSettings(
                settings.ha_secret,
                settings.ha_heartbeat_ms / 1000,
                settings.ha_silence_ms / 1000,
                settings.ha_retry_ms / 1000,
            ),
            own.clock.monotonic_s,
        )
        tables = Tables(store, host.topics, host.groups, host.offsets)
        self._sync = SlaveSync(tables, every_s=settings.metadata_ms / 1000)

    def start(self) -> None:
        self.slave.start()
        offsets = self._host.offsets
        offsets.begin_following(AcceptedOffsets(accepted_table(self._own.store)))
        offsets.clamp(self._own.store.max_offset)
        self._sync.start(self._own.role_state)

    async def close(self) -> None:
        self._sync.stop()
        await self.slave.stop()
        self._settle_soon.cancel()

    def abort(self) -> None:
        self._settle_soon.cancel()
        self._sync.stop()
        self.slave.abort()

    def tick(self) -> None:
        self.slave.tick()
        self._sync.tick()

    def on_written(self) -> None:
        """The log grew, or is flushed further."""
        self.slave.flushed()

    def on_arrived(self, units: QueueUnits) -> None:
        """Messages became visible; the master knows more about a topic that is unknown here."""
        topic = units.queue.topic
        if self._host.topics.get(topic) is None and not is_light(topic):
            self._sync.soon()

    def on_new_master(self) -> None:
        """NameServers report another address of the master's broker."""
        self._sync.soon()

    def on_new_ha_address(self) -> None:
        self.slave.reconnect_now()

    @property
    def is_streaming(self) -> bool:
        return self.slave.is_streaming

    def finish_sync(self, then: Callable[[], None]) -> None:
        """Before a promotion: copy the tables once more from a master that is still there."""
        if self.is_streaming and self._own.role_state.master_address:
            self._sync.finish(self._own.role_state.master_address, then)
        else:
            then()

    def delete_pending_topics(self) -> None:
        self._sync.delete_rest()

    def progress(self) -> Progress:
        return self._sync.progress()

    # Follower

    def master_address(self) -> str:
        return self._master.ha_address

    def why_not_plain(self, host: str) -> str:
        return self._master.why_not_plain(host)

    def hello(self) -> Hello:
        end = self._own.store.log.end
        return Hello(
            cluster=self._own.config.cluster,
            name=self._own.config.name,
            id=self._own.role_state.broker_id,
            end=end if end > self._own.store.log.min_offset else 0,
            marks=epochs.known_at(self._own.saved.value.marks, end),
            probe=probe_of(self._own.store),
            nonce=secrets.token_hex(16),
            address=self._host.address,
        )

    def agree(self, welcome: Welcome) -> None:
        """Make this log a prefix of the master's log, and save whose log it is."""
        store, marks = self._own.store, self._own.saved.value.marks
        check_master(store, marks, welcome)
        self._drop_slaves()
        from_last_file = self._own.count.settings.sync_from_last_file
        settle_log(store, marks, welcome, from_last_file=from_last_file)
        self._host.offsets.clamp(store.max_offset)
        self._own.saved.update(
            role=Role.SLAVE.value,
            broker_id=self._own.role_state.broker_id,
            marks=welcome.marks,
            copies=welcome.copies,
            copies_min=welcome.copies_min or welcome.copies,
        )
        self._own.role_state.adopt_epoch(epochs.epoch_of(welcome.marks))
        store.flush()
        self._sync.soon()  # the master needs the offsets that were committed here meanwhile
        epoch = self._own.role_state.epoch
        log.info("master.agreed", extra={"epoch": epoch, "end": int(store.log.end)})

    def appended(self) -> None:
        self._settle_soon()

    def lost(self) -> None:
        self._host.nameservers.wake()
