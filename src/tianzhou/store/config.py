"""Settings of the store. One frozen object, with RocketMQ's property names as aliases."""

import enum
from dataclasses import dataclass
from typing import Final

from tianzhou.base import limits
from tianzhou.base.settings import SettingsError, setting, spellings

PAGE: int = 4096


class FlushMode(enum.Enum):
    ASYNC = "ASYNC_FLUSH"
    """Acknowledge when the record is in the page cache; sync in the background."""
    SYNC = "SYNC_FLUSH"
    """Acknowledge the record, and make it visible, when it is durable."""


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(part) for part in text.split(";") if part.strip())
    if not all(0 <= hour <= 23 for hour in hours):
        raise ValueError("must be hours from 0 to 23, separated by ;")
    return hours


def _ratio(text: str) -> float:
    """RocketMQ uses percent for some of these and a fraction for others; both are accepted."""
    value = float(text)
    return value / 100 if value > 1 else value


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 1m 2h` to milliseconds."""
    levels: list[int] = []
    for word in text.split():
        if word[-1] not in _UNITS or not word[:-1].isdecimal():
            raise ValueError(f"{word!r} is not a number with s, m, h or d")
        levels.append(int(word[:-1]) * _UNITS[word[-1]])
    if not levels:
        raise ValueError("must name at least one delay")
    return tuple(levels)


def _path(text: str) -> str:
    """One directory or file. Unlike RocketMQ, Tianzhou does not spread a log over several
    directories."""
    if "," in text:
        raise ValueError("several paths are not supported; set one")
    return text.rstrip("/") or text


ROOT_SETTING: Final = "storePathRootDir"
"""RocketMQ's name for the store directory; the command reads it, not the store."""

_PREFIX: Final = "storePath"
_ELSEWHERE: Final = {
    "storePathDLedgerCommitLog": "a Raft group keeps its entries in the commit log; set "
    "commit_log_path (storePathCommitLog)",
    "storePathEpochFile": "epochs are in the tables; set tables_path",
    "storePathBrokerIdentity": "a broker keeps its name in the store directory; set --data "
    "(storePathRootDir)",
    "readOnlyCommitLogStorePaths": "a log has one directory; set commit_log_path "
    "(storePathCommitLog)",
}
"""What to set instead of paths of RocketMQ that Tianzhou does not have."""


def refused_path(name: str) -> str:
    """Why a setting of this name is rejected although others that are unknown are ignored: files
    would not be where its owner expects them. Empty if it is not rejected."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name.startswith(_PREFIX) and name != ROOT_SETTING:
        known = ", ".join(one for one in spellings(StoreConfig) if one.startswith(_PREFIX))
        return (
            f"unknown path; RocketMQ's names of paths are {ROOT_SETTING}, {known}; "
            "set tables_path for topics, groups and offsets"
        )
    return ""


DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


_ON_DISK = "the files of the store are laid out by it"
_PROMISED = "it defines what an acknowledgement guarantees"
_LEVELS = "waiting messages were stored with these levels"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    commit_log_path: str = setting(
        "",
        alias="storePathCommitLog",
        read=_path,
        fixed=_ON_DISK,
        help="Directory of the commit log; `commitlog` in the store directory by default.",
    )
    consume_queue_path: str = setting(
        "",
        alias="storePathConsumeQueue",
        read=_path,
        fixed=_ON_DISK,
        help="Directory of the consume queues; `consumequeue` in the store directory by default.",
    )
    index_path: str = setting(
        "",
        alias="storePathIndex",
        read=_path,
        fixed=_ON_DISK,
        help="Directory of the key index; `index` in the store directory by default.",
    )
    tables_path: str = setting(
        "",
        read=_path,
        fixed=_ON_DISK,
        help="Directory of the tables of topics, groups and offsets; `config` in the store "
        "directory by default.",
    )
    checkpoint_path: str = setting(
        "",
        alias="storeCheckpoint",
        read=_path,
        fixed=_ON_DISK,
        help="The checkpoint file; `checkpoint` in the store directory by default.",
    )
    abort_path: str = setting(
        "",
        alias="abortFile",
        read=_path,
        fixed=_ON_DISK,
        help="The file that exists while a broker runs; `abort` in the store directory by default.",
    )
    accept_loss_at: int = setting(
        -1,
        min=-1,
        max=1 << 62,
        help="Start although the log ends at this offset and the checkpoint vouches for more. The "
        "error of a refused start names the offset; the setting has no effect on any other loss.",
    )
    commit_log_file_bytes: int = setting(
        limits.COMMIT_LOG_FILE_BYTES,
        min=PAGE,
        max=1 << 40,
        alias="mappedFileSizeCommitLog",
        fixed=_ON_DISK,
        help="Size of one commit log file, in bytes. Fixed for the life of a directory.",
    )
    consume_queue_file_bytes: int = setting(
        limits.CONSUME_QUEUE_FILE_UNITS * 20,
        min=20,
        max=1 << 32,
        alias="mappedFileSizeConsumeQueue",
        fixed=_ON_DISK,
        help="Size of one consume queue file, in bytes; rounded down to whole units of 20.",
    )
    index_slots: int = setting(
        5_000_000,
        min=1,
        max=1 << 28,
        alias="maxHashSlotNum",
        fixed=_ON_DISK,
        help="Hash slots of one index file. Fixed for the life of a directory.",
    )
    index_entries: int = setting(
        20_000_000,
        min=2,
        max=1 << 28,
        alias="maxIndexNum",
        fixed=_ON_DISK,
        help="Entries of one index file. Fixed for the life of a directory.",
    )
    index_enabled: bool = setting(
        True,
        alias="messageIndexEnable",
        fixed=_ON_DISK,
        help="Keep an index of message keys and unique ids.",
    )
    commit_log_preallocate_bytes: int = setting(
        16 * 1024 * 1024,
        min=PAGE,
        max=1 << 30,
        help="Disk blocks of the commit log are reserved this many bytes ahead of the writer.",
    )
    record_crc: bool = setting(
        True,
        alias="enabledAppendPropCRC",
        fixed=_PROMISED,
        help="Write a checksum of the whole record as its last property.",
    )
    message_bytes_max: int = setting(
        limits.BODY_BYTES_MAX,
        min=1024,
        max=limits.BODY_BYTES_MAX,
        alias="maxMessageSize",
        live=True,
        help="Largest stored body, in bytes.",
    )

    flush_mode: FlushMode = setting(
        FlushMode.ASYNC,
        alias="flushDiskType",
        fixed=_PROMISED,
        help="When a message counts as stored.",
    )
    flush_interval_ms: int = setting(
        500,
        min=1,
        max=60_000,
        alias="flushIntervalCommitLog",
        help="Asynchronous mode: how often appended bytes are synced, in milliseconds.",
    )
    flush_pages_min: int = setting(
        4,
        min=0,
        max=1 << 20,
        alias="flushCommitLogLeastPages",
        help="Asynchronous mode: fewer dirty pages of 4 KiB than this may wait.",
    )
    flush_max_delay_ms: int = setting(
        10_000,
        min=1,
        max=600_000,
        alias="flushCommitLogThoroughInterval",
        help="Asynchronous mode: everything is synced at least this often, in milliseconds.",
    )
    queue_flush_interval_ms: int = setting(
        1_000,
        min=1,
        max=60_000,
        alias="flushIntervalConsumeQueue",
        live=True,
        help="Consume queues, index and checkpoint are synced at most this often, in milliseconds, "
        "and then when 16 MiB of log are not covered by the checkpoint.",
    )
    queue_flush_thorough_ms: int = setting(
        60_000,
        min=1,
        max=600_000,
        alias="flushConsumeQueueThoroughInterval",
        live=True,
        help="Queues with few new units are synced at least this often, in milliseconds.",
    )
    sync_flush_timeout_ms: int = setting(
        5_000,
        min=1,
        max=600_000,
        alias="syncFlushTimeout",
        live=True,
        help="Synchronous mode: how long a producer waits before FLUSH_DISK_TIMEOUT.",
    )

    retention_hours: int = setting(
        72,
        min=0,
        max=24 * 365 * 10,
        alias="fileReservedTime",
        live=True,
        help="Files whose youngest message is older than this expire.",
    )
    retention_at_hours: tuple[int, ...] = setting(
        (4,),
        alias="deleteWhen",
        read=_hours,
        live=True,
        help="Local hours in which expired files are removed.",
    )
    disk_clean_ratio: float = setting(
        0.75,
        min=0.10,
        max=0.95,
        alias="diskMaxUsedSpaceRatio",
        read=_ratio,
        live=True,
        help="Above this disk usage expired files are removed at once, whatever the hour.",
    )
    disk_force_ratio: float = setting(
        0.85,
        min=0.15,
        max=0.97,
        alias="diskSpaceCleanForciblyRatio",
        read=_ratio,
        live=True,
        help="Above this disk usage the oldest files are removed, expired or not.",
    )
    disk_refuse_ratio: float = setting(
        0.90,
        min=0.20,
        max=0.99,
        alias="diskSpaceWarningLevelRatio",
        read=_ratio,
        live=True,
        help="Above this disk usage writes are rejected until space is freed.",
    )
    clean_interval_ms: int = setting(
        10_000,
        min=10,
        max=600_000,
        alias="cleanResourceInterval",
        live=True,
        help="Interval of retention and checks of disk usage, in milliseconds.",
    )

    delay_levels_ms: tuple[int, ...] = setting(
        delay_levels(DELAY_LEVELS),
        alias="messageDelayLevel",
        read=delay_levels,
        fixed=_LEVELS,
        help="Delays of levels 1, 2, 3 …",
    )

    def __post_init__(self) -> None:
        problems = [
            text
            for text, is_wrong in (
                (
                    "disk_clean_ratio, disk_force_ratio and disk_refuse_ratio must ascend",
                    not self.disk_clean_ratio <= self.disk_force_ratio <= self.disk_refuse_ratio,
                ),
                (
                    f"retention_at_hours = {self.retention_at_hours}: hours are 0 to 23",
                    not all(0 <= hour <= 23 for hour in self.retention_at_hours),
                ),
                ("delay_levels_ms must name at least one delay", not self.delay_levels_ms),
            )
            if is_wrong
        ]
        if problems:
            raise SettingsError(problems)

    @property
    def consume_queue_file_units(self) -> int:
        return self.consume_queue_file_bytes // 20
