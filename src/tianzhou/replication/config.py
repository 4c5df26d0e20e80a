"""Settings of master and slave, with RocketMQ's property names as aliases."""

import enum
from dataclasses import dataclass

from tianzhou.base.settings import setting
from tianzhou.replication.ha_plain import PlainPeers, checked_plain_peers


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    """Answers do not wait for slaves."""
    SYNC_MASTER = "SYNC_MASTER"
    """Answers wait until as many copies as `in_sync_replicas` says hold the message."""
    SLAVE = "SLAVE"
    """Follows the master of its group."""


def _ratio(text: str) -> float:
    """RocketMQ writes percent."""
    value = float(text)
    return value / 100 if value > 1 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER, alias="brokerRole",
        fixed="a promotion changes it: `tianzhou broker promote`",
        help="What this broker is at its first start; a promotion changes it for good.",
    )  # fmt: skip
    ha_port: int = setting(
        0, min=0, max=65535, alias="haListenPort",
        help="Port for slaves. 0: the one above the broker's, if that is free.",
    )  # fmt: skip
    ha_address: str = setting(
        "", alias="brokerIP2", help="Address handed out to slaves. Empty: as for clients."
    )
    ha_master_address: str = setting(
        "", alias="haMasterAddress",
        help="Slave: where the master listens for slaves. Empty: the NameServer says.",
    )  # fmt: skip
    in_sync_replicas: int = setting(
        2, min=1, max=16, alias="inSyncReplicas",
        live=True,
        help="SYNC_MASTER: copies that must hold a message before its sender is answered, the "
        "master's included.",
    )  # fmt: skip
    in_sync_replicas_min: int = setting(
        0, min=0, max=16, alias="minInSyncReplicas",
        help="The lowest inSyncReplicas that can be set while the master runs. 0: its value in the "
        "settings.",
    )  # fmt: skip
    slave_timeout_ms: int = setting(
        3_000, min=1, max=600_000, alias="slaveTimeout",
        live=True, help="SYNC_MASTER: how long a producer waits before FLUSH_SLAVE_TIMEOUT.",
    )  # fmt: skip
    slave_behind_bytes_max: int = setting(
        256 * 1024 * 1024, min=1, max=1 << 40, alias="haSlaveFallbehindMax",
        help="A slave that is further behind is not waited for and not in the in-sync set.",
    )  # fmt: skip
    ha_frame_bytes: int = setting(
        32 * 1024, min=64, max=2 * 1024 * 1024, alias="haTransferBatchSize",
        help="Log bytes in one frame to a RocketMQ slave; our own get larger ones.",
    )  # fmt: skip
    ha_heartbeat_ms: int = setting(
        5_000, min=10, max=600_000, alias="haSendHeartbeatInterval",
        help="How often an idle connection between master and slave shows that it lives.",
    )  # fmt: skip
    ha_silence_ms: int = setting(
        20_000, min=20, max=600_000, alias="haHousekeepingInterval",
        help="A connection between master and slave that is silent for so long is closed.",
    )  # fmt: skip
    ha_retry_ms: int = setting(
        5_000, min=10, max=600_000,
        help="Slave: the longest time between two tries to reach the master.",
    )  # fmt: skip
    sync_from_last_file: bool = setting(
        False, alias="syncFromLastFile",
        help="An empty slave begins with the master's last file, as in RocketMQ, not its oldest.",
    )  # fmt: skip
    ha_plain_peers: str = setting(
        "", read=checked_plain_peers,
        help="RocketMQ brokers of this group, as IP addresses or networks separated by commas: "
        "only these may follow, or be followed, without a greeting. Never with ha_secret.",
    )  # fmt: skip
    ha_plain_copies: bool = setting(
        False,
        help="SYNC_MASTER: count confirmations of RocketMQ slaves as copies, although these "
        "cannot prove that they hold the same log.",
    )  # fmt: skip
    ha_secret: str = setting(
        "",
        fixed="peers have proven that they know it",
        help="Master and slaves prove to each other that they know this. Empty: no proof.",
    )
    metadata_ms: int = setting(
        10_000, min=100, max=600_000,
        help="Slave: how often topics, groups and offsets are taken from the master.",
    )  # fmt: skip
    slave_read: bool = setting(
        True, alias="slaveReadEnable",
        help="Send consumers that read old messages to a slave; a slave serves them.",
    )  # fmt: skip
    memory_ratio: float = setting(
        0.4, min=0, max=0.95, alias="accessMessageInMemoryMaxRatio", read=_ratio,
        help="More unread log than this part of memory: read it from a slave. A slave sends "
        "consumers back when it is 10 % of memory less.",
    )  # fmt: skip

    @property
    def copies(self) -> int | None:
        """That must hold a message before its sender is answered; None: as the master has it."""
        if self.role is BrokerRole.SLAVE:
            return None
        return self.in_sync_replicas if self.role is BrokerRole.SYNC_MASTER else 1

    @property
    def plain_peers(self) -> PlainPeers:
        return PlainPeers() if self.ha_secret else PlainPeers.read(self.ha_plain_peers)
