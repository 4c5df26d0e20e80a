"""Settings of master and slave, with RocketMQ's property names as aliases."""

import enum
from dataclasses import dataclass

from tianzhou.base.settings import setting
from tianzhou.replication.ha_plain import PlainPeers, checked_plain_peers


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    """Responses do not wait for slaves."""
    SYNC_MASTER = "SYNC_MASTER"
    """Responses wait until `in_sync_replicas` replicas hold the message."""
    SLAVE = "SLAVE"
    """Follows the master of its group."""


def _ratio(text: str) -> float:
    """RocketMQ writes percent."""
    value = float(text)
    return value / 100 if value > 1 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        alias="brokerRole",
        fixed="a promotion changes it: `tianzhou broker promote`",
        help="Role of this broker at its first start; a promotion changes it permanently.",
    )
    ha_port: int = setting(
        0,
        min=0,
        max=65535,
        alias="haListenPort",
        help="Port for slaves. 0: the broker's port plus one, if it is free.",
    )
    ha_address: str = setting(
        "", alias="brokerIP2", help="Address that slaves connect to. Empty: that of clients."
    )
    ha_master_address: str = setting(
        "",
        alias="haMasterAddress",
        help="Slave: address of the master's port for slaves. Empty: ask the NameServer.",
    )
    in_sync_replicas: int = setting(
        2,
        min=1,
        max=16,
        alias="inSyncReplicas",
        live=True,
        help="SYNC_MASTER: replicas that must hold a message before it is acknowledged, the "
        "master's included.",
    )
    in_sync_replicas_min: int = setting(
        0,
        min=0,
        max=16,
        alias="minInSyncReplicas",
        help="The lowest inSyncReplicas that can be set while the master runs. 0: its value in the "
        "settings.",
    )
    slave_timeout_ms: int = setting(
        3_000,
        min=1,
        max=600_000,
        alias="slaveTimeout",
        live=True,
        help="SYNC_MASTER: how long a producer waits before FLUSH_SLAVE_TIMEOUT.",
    )
    slave_behind_bytes_max: int = setting(
        256 * 1024 * 1024,
        min=1,
        max=1 << 40,
        alias="haSlaveFallbehindMax",
        help="A slave that is further behind is not waited for and not in the in-sync set.",
    )
    ha_frame_bytes: int = setting(
        32 * 1024,
        min=64,
        max=2 * 1024 * 1024,
        alias="haTransferBatchSize",
        help="Log bytes in one frame to a RocketMQ slave; our own get larger ones.",
    )
    ha_heartbeat_ms: int = setting(
        5_000,
        min=10,
        max=600_000,
        alias="haSendHeartbeatInterval",
        help="Interval of heartbeats on an idle connection between master and slave.",
    )
    ha_silence_ms: int = setting(
        20_000,
        min=20,
        max=600_000,
        alias="haHousekeepingInterval",
        help="Close a connection between master and slave after this long without data.",
    )
    ha_retry_ms: int = setting(
        5_000,
        min=10,
        max=600_000,
        help="Slave: the longest pause between two attempts to connect to the master.",
    )
    sync_from_last_file: bool = setting(
        False,
        alias="syncFromLastFile",
        help="An empty slave starts with the master's last file, as in RocketMQ, not its oldest.",
    )
    ha_plain_peers: str = setting(
        "",
        read=checked_plain_peers,
        help="RocketMQ brokers of this group, as IP addresses or networks separated by commas: "
        "only these may follow, or be followed, without a greeting. Never with ha_secret.",
    )
    ha_plain_copies: bool = setting(
        False,
        help="SYNC_MASTER: count confirmations of RocketMQ slaves as replicas, although they "
        "cannot prove that they hold the same log.",
    )
    ha_secret: str = setting(
        "",
        fixed="peers have proven that they know it",
        help="Shared secret that master and slaves prove to each other. Empty: no proof.",
    )
    metadata_ms: int = setting(
        10_000,
        min=100,
        max=600_000,
        help="Slave: interval at which topics, groups and offsets are copied from the master.",
    )
    slave_read: bool = setting(
        True,
        alias="slaveReadEnable",
        help="Send consumers that read old messages to a slave; a slave serves them.",
    )
    memory_ratio: float = setting(
        0.4,
        min=0,
        max=0.95,
        alias="accessMessageInMemoryMaxRatio",
        read=_ratio,
        help="More unread log than this part of memory: read it from a slave. A slave sends "
        "consumers back when it is 10 % of memory less.",
    )

    @property
    def copies(self) -> int | None:
        """Replicas that must hold a message before it is acknowledged; None: as on the master."""
        if self.role is BrokerRole.SLAVE:
            return None
        return self.in_sync_replicas if self.role is BrokerRole.SYNC_MASTER else 1

    @property
    def plain_peers(self) -> PlainPeers:
        return PlainPeers() if self.ha_secret else PlainPeers.read(self.ha_plain_peers)
