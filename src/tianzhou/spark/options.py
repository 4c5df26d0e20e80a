"""The options of the tables: read once, checked on the driver, handed to tasks as values.

Names are case-insensitive, as everywhere in Spark. The spellings of the old connector for Java are
understood as well.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import nameserver_from
from tianzhou.client.options import checked_group, parse_nameservers
from tianzhou.client.sync.brokers import Brokers, Credentials
from tianzhou.filter.errors import FilterError
from tianzhou.filter.tags import parse_tags
from tianzhou.record.names import checked_topic
from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import (
    EARLIEST,
    LATEST,
    Option,
    QueueTable,
    read_bool,
    read_count,
    read_duration_ms,
    read_offsets,
    read_options,
    read_text,
    read_time_ms,
    read_words,
)

GROUP_DEFAULT: Final = "TOOLS_CONSUMER"
"""A group that every broker has, for reading without leaving a trace."""

# What Spark itself adds.
_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "serialization.format", "inferschema"}
)
_IS_NAME: Final = re.compile(r"[%|\w-]+", re.ASCII)
_PATTERN_SIGNS: Final = re.compile(r"[.*+?^$\\()\[\]{}]")
_NUMBERS: Final = re.compile(r"\{\d*,\d*\}")


def _read_nameserver(text: str) -> str:
    return _checked(lambda: ";".join(parse_nameservers(text)))


def _read_topics(text: str) -> tuple[str, ...] | re.Pattern[str]:
    """Names with commas between them, or, with any other sign in it, a regular expression."""
    words = read_words(text)
    if all(map(_IS_NAME.fullmatch, words)) or not _PATTERN_SIGNS.search(text):
        return tuple(dict.fromkeys(map(_read_topic, words)))
    return _read_pattern(text)


def _read_pattern(text: str) -> re.Pattern[str]:
    if re.search(r"[,\s]", _NUMBERS.sub("", text.strip())):
        raise ValueError(
            "has a comma or a blank, which no topic has: give names with commas between them, or "
            "one regular expression such as orders|pay.*"
        )
    try:
        return re.compile(text.strip())
    except re.error as error:
        raise ValueError(f"is neither names of topics nor a regular expression: {error}") from None


def _read_topic(text: str) -> str:
    return _checked(lambda: checked_topic(text.strip()))


def _read_group(text: str) -> str:
    return _checked(lambda: checked_group(text.strip()))


def _read_columns(text: str) -> tuple[str, ...]:
    words = read_words(text)
    if len({word.lower() for word in words}) < len(words):
        raise ValueError("names a column twice")
    return words


def _read_tags(text: str) -> str:
    _checked(lambda: parse_tags(text))
    return text


def _read_sql(text: str) -> str:
    # Few queries have one, and each loads this in a process of its own.
    from tianzhou.filter.sql92 import compile_sql

    _checked(lambda: compile_sql(text))
    return text


def _checked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (FilterError, UsageError) as error:
        raise ValueError(f"can't be used: {error}") from None


CLUSTER: Final = {
    "nameserver": Option(
        _read_nameserver, "NameServers as `host:port`, separated by `;`. Defaults to "
        "`TIANZHOU_NAMESERVER` or `NAMESRV_ADDR` in the environment.",
        ("namesrvAddr", "nameservers")),
    "accessKey": Option(read_text, "Whose secret key signs the requests."),
    "secretKey": Option(read_text, "Signs every request; needs `accessKey`."),
    "securityToken": Option(read_text, "Sent along with a temporary key."),
    "retryTimeout": Option(
        read_duration_ms, "How long a task goes on trying when a broker is away (`30s`)."),
}  # fmt: skip

COLUMNS: Final = {
    "columns": Option(
        _read_columns, "Columns to decode, with commas between them; all of them unless given."),
}  # fmt: skip

READ: Final = CLUSTER | COLUMNS | {
    "topic": Option(
        _read_topics, "One topic, several with commas between them, or a regular expression.",
        ("path", "topics", "subscribe")),
    "topicPattern": Option(_read_pattern, "A regular expression.", ("subscribePattern",)),
    "startingOffsets": Option(
        read_offsets, "`earliest`, `latest`, or JSON per queue. Batches begin at `earliest`, "
        "streams at `latest`, unless told otherwise."),
    "endingOffsets": Option(
        read_offsets, "Where a batch ends: `latest` (unless given), or JSON per queue."),
    "startingTimestamp": Option(read_time_ms, "Begin with what was stored at this time."),
    "endingTimestamp": Option(read_time_ms, "End before what was stored at this time."),
    "tags": Option(_read_tags, "Tags with `||` between them; the broker filters.",
                   ("subExpression",)),
    "sql92": Option(_read_sql, "An expression over properties; the broker filters.",
                    ("filter",)),
    "pushdown": Option(
        read_bool, "For a batch that one query reads: its filters say what is read at all "
        "(`false`)."),
    "maxRowsPerPartition": Option(
        read_count, "Messages that one task reads at most.", ("maxRecordsPerPartition",)),
    "minPartitions": Option(read_count, "Tasks that a read is divided into at least."),
    "failOnDataLoss": Option(
        read_bool, "Whether missing messages are an error (`true`) or passed over."),
    "group": Option(
        _read_group, "Consumer group: streams tell the broker how far they are under this name.",
        ("consumerGroup", "groupId")),
    "maxOffsetsPerTrigger": Option(read_count, "Messages in one micro-batch at most."),
    "minOffsetsPerTrigger": Option(read_count, "Wait until so many messages are there."),
    "maxTriggerDelay": Option(
        read_duration_ms, "How long `minOffsetsPerTrigger` may hold back a micro-batch (`15m`)."),
    "pullBatchSize": Option(read_count, "Messages in one answer of a broker at most (`1024`)."),
}  # fmt: skip

WRITE: Final = CLUSTER | {
    "topic": Option(_read_topic, "Topic of the rows that name none.", ("path",)),
    "group": Option(_read_group, "Producer group (`spark`).", ("producerGroup",)),
    "idempotent": Option(
        read_bool, "Whether a repeated task or micro-batch looks for what it wrote before."),
}  # fmt: skip

STORE: Final = COLUMNS | {
    "path": Option(read_text, "The store directory, the one with `commitlog` in it."),
    "topic": Option(
        _read_topics, "Only these topics: names with commas, or a regular expression."),
    "startingTimestamp": READ["startingTimestamp"],
    "endingTimestamp": READ["endingTimestamp"],
    "tags": Option(_read_tags, "Only these tags, with `||` between them.", ("subExpression",)),
    "verify": Option(read_bool, "Whether the checksum of every record is compared (`true`)."),
    "failOnDataLoss": Option(
        read_bool, "Whether damaged places are an error (`true`) or passed over."),
    "maxPartitionBytes": Option(
        read_count, "Bytes of the log that one task reads at most (134217728)."),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How brokers are reached."""

    nameserver: str
    credentials: Credentials | None
    retry_s: float

    def connect(self) -> Brokers:
        return Brokers(self.nameserver, credentials=self.credentials, retry_s=self.retry_s)


def _cluster(found: dict[str, Any]) -> ClusterOptions:
    nameserver = found.get("nameserver") or nameserver_from(os.environ)
    if nameserver is None:
        raise SourceError(
            "MISSING_OPTION",
            "option nameserver is missing; set it to host:port, or set TIANZHOU_NAMESERVER in the "
            "environment before the session starts",
        )
    nameserver = _read_nameserver(nameserver)
    keys = [name for name in ("accessKey", "secretKey") if name in found]
    if len(keys) == 1 or ("securityToken" in found and not keys):
        raise SourceError("WRONG_OPTION", "options accessKey and secretKey need each other")
    credentials = None
    if keys:
        credentials = Credentials(
            access_key=found["accessKey"], secret_key=found["secretKey"],
            security_token=found.get("securityToken", ""),
        )  # fmt: skip
    return ClusterOptions(
        nameserver=nameserver, credentials=credentials,
        retry_s=found.get("retryTimeout", 30_000) / 1000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    cluster: ClusterOptions
    topics: tuple[str, ...] | re.Pattern[str]
    columns: tuple[str, ...]
    starting: QueueTable | int
    ending: QueueTable | int
    starting_ms: int | None
    ending_ms: int | None
    tags: str
    sql92: str
    pushdown: bool
    rows_per_partition_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    group: str | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int
    trigger_delay_ms: int
    pull_count: int | None


def check_read_options(given: Mapping[str, str]) -> dict[str, Any]:
    """What can be said before it is known whether a batch or a stream is read: the values."""
    found = read_options(given, READ, _OF_SPARK)
    if len({"topic", "topicPattern"} & found.keys()) != 1:
        raise SourceError(
            "MISSING_OPTION", "say which topics to read: either option topic or topicPattern"
        )
    _reject_pairs(found, ("startingOffsets", "startingTimestamp"),
                  ("endingOffsets", "endingTimestamp"), ("tags", "sql92"))  # fmt: skip
    _reject_reversed(found, "startingTimestamp", "endingTimestamp")
    _reject_reversed(found, "minOffsetsPerTrigger", "maxOffsetsPerTrigger")
    _cluster(found)
    return found


def read_options_of(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    found = check_read_options(given)
    if is_stream:
        _reject_in_streams(found)
    starting = found.get("startingOffsets", LATEST if is_stream else EARLIEST)
    ending = found.get("endingOffsets", LATEST)
    if not is_stream and (starting == LATEST or ending == EARLIEST):
        raise SourceError(
            "WRONG_OPTION",
            "a batch that begins at the latest or ends at the earliest offset is empty",
        )
    return ReadOptions(
        cluster=_cluster(found),
        topics=found["topic"] if "topic" in found else found["topicPattern"],
        columns=found.get("columns", ()),
        starting=starting, ending=ending,
        starting_ms=found.get("startingTimestamp"), ending_ms=found.get("endingTimestamp"),
        tags=found.get("tags", "*"), sql92=found.get("sql92", ""),
        pushdown=found.get("pushdown", False),
        rows_per_partition_max=found.get("maxRowsPerPartition"),
        partitions_min=found.get("minPartitions", 1),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        group=found.get("group"),
        offsets_per_trigger_max=found.get("maxOffsetsPerTrigger"),
        offsets_per_trigger_min=found.get("minOffsetsPerTrigger", 1),
        trigger_delay_ms=found.get("maxTriggerDelay", 15 * 60_000),
        pull_count=found.get("pullBatchSize"),
    )  # fmt: skip


def _reject_in_streams(found: dict[str, Any]) -> None:
    if {"endingOffsets", "endingTimestamp"} & found.keys():
        raise SourceError(
            "WRONG_OPTION", "a stream has no end: endingOffsets and endingTimestamp are for batches"
        )
    if found.get("pushdown"):
        raise SourceError(
            "WRONG_OPTION", "Spark pushes no filters into streams: pushdown is for batches"
        )


def _reject_pairs(found: dict[str, Any], *pairs: tuple[str, str]) -> None:
    for first, second in pairs:
        if first in found and second in found:
            raise SourceError("WRONG_OPTION", f"give either {first} or {second}, not both")


def _reject_reversed(found: dict[str, Any], low: str, high: str) -> None:
    if low in found and high in found and found[low] > found[high]:
        raise SourceError(
            "WRONG_OPTION", f"{low} ({found[low]}) is above {high} ({found[high]}): exchange them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    cluster: ClusterOptions
    topic: str | None
    group: str
    idempotent: bool


def write_options_of(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    found = read_options(given, WRITE, _OF_SPARK)
    idempotent = found.get("idempotent", False)
    if idempotent and "topic" not in found:
        raise SourceError("MISSING_OPTION", "idempotent=true needs the option topic")
    if idempotent and is_stream and "group" not in found:
        raise SourceError(
            "MISSING_OPTION",
            "idempotent=true needs the option group: the broker keeps under this name how far the "
            "query's topic was when its last micro-batch began",
        )
    return WriteOptions(
        cluster=_cluster(found), topic=found.get("topic"), group=found.get("group", "spark"),
        idempotent=idempotent,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    path: str
    columns: tuple[str, ...]
    topics: tuple[str, ...] | re.Pattern[str] | None
    starting_ms: int | None
    ending_ms: int | None
    tags: str
    verify: bool
    fail_on_data_loss: bool
    partition_bytes_max: int


def store_options_of(given: Mapping[str, str]) -> StoreOptions:
    found = read_options(given, STORE, _OF_SPARK)
    if "path" not in found:
        raise SourceError("MISSING_OPTION", "option path is missing; set it to a store directory")
    return StoreOptions(
        path=found["path"], columns=found.get("columns", ()), topics=found.get("topic"),
        starting_ms=found.get("startingTimestamp"), ending_ms=found.get("endingTimestamp"),
        tags=found.get("tags", "*"), verify=found.get("verify", True),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        partition_bytes_max=found.get("maxPartitionBytes", 128 * 1024 * 1024),
    )  # fmt: skip


__all__ = [
    "EARLIEST", "LATEST", "ClusterOptions", "ReadOptions", "StoreOptions", "WriteOptions",
    "read_options_of", "store_options_of", "write_options_of",
]  # fmt: skip
