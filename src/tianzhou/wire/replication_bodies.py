"""The replication state of a broker: its role, its log and its slaves. A Tianzhou extension."""

from typing import Final

import msgspec

from tianzhou.wire.fastjson import BodyReader

LOG_END: Final = "tzLogEnd"
"""Header field: where the master's log ended when it responded to GET_ALL_TOPIC_CONFIG or
GET_ALL_DELAY_OFFSET. RocketMQ's slaves ignore it."""
TIMERS: Final = "tzTimerProgress"
"""Header field: the progress of the master's timers, in responses to GET_ALL_DELAY_OFFSET."""


class SlaveView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slave as its master sees it."""

    acked: int
    address: str
    broker_id: int = -1
    """-1: one of RocketMQ's, which does not say."""
    is_in_sync: bool
    lag_bytes: int
    lag_ms: int


class LostSlave(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slave that followed this master, and does not now."""

    acked: int
    address: str
    broker_id: int
    gone_ms: int
    """How long ago it stopped following."""


class ReplicationView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_REPLICATION."""

    broker_id: int
    broker_name: str
    confirmed: int
    """Everything below this offset meets the guarantee of this broker."""
    copies_needed: int = 1
    """Replicas that must hold a message before it is acknowledged."""
    end: int
    epoch: int = 0
    flushed: int
    is_connected: bool = False
    """A slave: its master sends it the log."""
    last_error: str = ""
    """A slave: why it is not, or was not."""
    lost: tuple[LostSlave, ...] = ()
    """On a master: slaves that followed it within the last day, but do not now."""
    master_address: str = ""
    master_end: int = 0
    """On a slave: the end of the master's log, as last reported by the master."""
    min: int
    role: str
    run: int = 0
    """Which start of that master, of those after which the end of its log was uncertain."""
    slaves: tuple[SlaveView, ...] = ()


decode_replication_view = BodyReader(ReplicationView).read
