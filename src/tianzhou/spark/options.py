"""The options of the tables: parsed once, validated on the driver, passed to tasks as values.

Names are case-insensitive, as everywhere in Spark. The spellings of the Java connector work too.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import nameserver_from
from tianzhou.client.bulk.brokers import Brokers, Credentials
from tianzhou.client.options import checked_group, parse_nameservers
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
from tianzhou.wire.names import TOOLS_GROUP

GROUP_DEFAULT: Final = TOOLS_GROUP
"""A group that exists on every broker, for reading without committing offsets."""

# Options that Spark itself adds.
_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "serialization.format", "inferschema"}
)
_IS_NAME: Final = re.compile(r"[%|\w-]+", re.ASCII)
_PATTERN_SIGNS: Final = re.compile(r"[.*+?^$\\()\[\]{}]")
_NUMBERS: Final = re.compile(r"\{\d*,\d*\}")


def _read_nameserver(text: str) -> str:
    return _checked(lambda: ";".join(parse_nameservers(text)))


def _read_topics(text: str) -> tuple[str, ...] | re.Pattern[str]:
    """Parse names separated by commas or, if any other character occurs, a regular expression."""
    words = read_words(text)
    if all(map(_IS_NAME.fullmatch, words)) or not _PATTERN_SIGNS.search(text):
        return tuple(dict.fromkeys(map(_read_topic, words)))
    return _read_pattern(text)


def _read_pattern(text: str) -> re.Pattern[str]:
    if re.search(r"[,\s]", _NUMBERS.sub("", text.strip())):
        raise ValueError(
            "contains a comma or a blank, which topic names cannot contain: give names separated "
            "by commas, or one regular expression such as orders|pay.*"
        )
    try:
        return re.compile(text.strip())
    except re.error as error:
        raise ValueError(f"must be topic names or a regular expression: {error}") from None


def _read_topic(text: str) -> str:
    return _checked(lambda: checked_topic(text.strip()))


def _read_group(text: str) -> str:
    return _checked(lambda: checked_group(text.strip()))


def _read_columns(text: str) -> tuple[str, ...]:
    words = read_words(text)
    if len({word.lower() for word in words}) < len(words):
        raise ValueError("must not name a column twice")
    return words


def _read_tags(text: str) -> str:
    _checked(lambda: parse_tags(text))
    return text


def _read_sql(text: str) -> str:
    # Few queries use SQL92, and each query loads this module in its own process.
    from tianzhou.filter.sql92 import compile_sql

    _checked(lambda: compile_sql(text))
    return text


def _checked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (FilterError, UsageError) as error:
        raise ValueError(f"is not valid: {error}") from None


CLUSTER: Final = {
    "nameserver": Option(
        _read_nameserver,
        "NameServers as `host:port`, separated by `;`. Defaults to "
        "`TIANZHOU_NAMESERVER` or `NAMESRV_ADDR` in the environment.",
        ("namesrvAddr", "nameservers"),
    ),
    "accessKey": Option(read_text, "Access key of the account; its secret key signs the requests."),
    "secretKey": Option(read_text, "Signs every request; needs `accessKey`."),
    "securityToken": Option(read_text, "Sent with every request; belongs to a temporary key."),
    "retryTimeout": Option(
        read_duration_ms, "How long a task retries while a broker is unreachable (`30s`)."
    ),
}

COLUMNS: Final = {
    "columns": Option(
        _read_columns, "Columns to decode, separated by commas. Defaults to all columns."
    ),
}

READ: Final = CLUSTER | COLUMNS | {
    "topic": Option(
        _read_topics, "One topic, several separated by commas, or a regular expression.",
        ("path", "topics", "subscribe")),
    "topicPattern": Option(_read_pattern, "Topics as a regular expression.", ("subscribePattern",)),
    "startingOffsets": Option(
        read_offsets, "`earliest`, `latest`, or JSON per queue. Defaults to `earliest` for "
        "batches and to `latest` for streams."),
    "endingOffsets": Option(
        read_offsets, "Where a batch ends: `latest` (the default), or JSON per queue."),
    "startingTimestamp": Option(read_time_ms, "Start with messages stored at this time."),
    "endingTimestamp": Option(read_time_ms, "End before messages stored at this time."),
    "tags": Option(_read_tags, "Tags separated by `||`; the broker filters.",
                   ("subExpression",)),
    "sql92": Option(_read_sql, "An expression over properties; the broker filters.",
                    ("filter",)),
    "pushdown": Option(
        read_bool, "For a batch that one query reads: the query's filters limit what is read "
        "(`false`)."),
    "maxRowsPerPartition": Option(
        read_count, "Maximum number of messages per task.", ("maxRecordsPerPartition",)),
    "minPartitions": Option(read_count, "Minimum number of tasks per read."),
    "failOnDataLoss": Option(
        read_bool, "Whether missing messages are an error (`true`) or skipped."),
    "group": Option(
        _read_group, "Consumer group under which streams commit their offsets to the broker.",
        ("consumerGroup", "groupId")),
    "maxOffsetsPerTrigger": Option(read_count, "Maximum number of messages per micro-batch."),
    "minOffsetsPerTrigger": Option(read_count, "Wait until this many messages are available."),
    "maxTriggerDelay": Option(
        read_duration_ms, "How long `minOffsetsPerTrigger` may delay a micro-batch (`15m`)."),
    "pullBatchSize": Option(read_count, "Maximum number of messages per pull response (`1024`)."),
}  # fmt: skip

WRITE: Final = CLUSTER | {
    "topic": Option(_read_topic, "Topic of rows without a column `topic`.", ("path",)),
    "group": Option(_read_group, "Producer group (`spark`).", ("producerGroup",)),
    "idempotent": Option(
        read_bool, "Whether a retried task or micro-batch skips rows it has already written."
    ),
}

STORE: Final = COLUMNS | {
    "path": Option(read_text, "The store directory, which contains `commitlog`."),
    "topic": Option(
        _read_topics, "Only these topics: names separated by commas, or a regular expression."
    ),
    "startingTimestamp": READ["startingTimestamp"],
    "endingTimestamp": READ["endingTimestamp"],
    "tags": Option(_read_tags, "Only these tags, separated by `||`.", ("subExpression",)),
    "verify": Option(read_bool, "Whether the checksum of every record is verified (`true`)."),
    "failOnDataLoss": Option(
        read_bool, "Whether damaged records are an error (`true`) or skipped."
    ),
    "maxPartitionBytes": Option(read_count, "Maximum bytes of the log per task (134217728)."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to connect to the brokers."""

    nameserver: str
    credentials: Credentials | None
    retry_s: float

    def connect(self) -> Brokers:
        """Return a client of the cluster. Close it, or use it as a context manager."""
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
        raise SourceError("WRONG_OPTION", "options accessKey and secretKey must be set together")
    credentials = None
    if keys:
        credentials = Credentials(
            access_key=found["accessKey"],
            secret_key=found["secretKey"],
            security_token=found.get("securityToken", ""),
        )
    return ClusterOptions(
        nameserver=nameserver,
        credentials=credentials,
        retry_s=found.get("retryTimeout", 30_000) / 1000,
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends: at a store time if one is set, else at offsets."""

    offsets: QueueTable | int
    time_ms: int | None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The filter that the broker applies: tags, or an SQL92 expression if one is set."""

    tags: str
    sql92: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """How a read is divided into tasks."""

    rows_max: int | None
    partitions_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How many messages a micro-batch reads, and how long it may wait for them."""

    rows_max: int | None
    rows_min: int
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Validated options for reading topics."""

    cluster: ClusterOptions
    topics: tuple[str, ...] | re.Pattern[str]
    columns: tuple[str, ...]
    start: Bound
    end: Bound
    filter: MessageFilter
    pushdown: bool
    partitioning: Partitioning
    fail_on_data_loss: bool
    group: str | None
    trigger: TriggerLimits
    pull_count: int | None


def check_read_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Validate what applies to batches and streams alike and return the parsed values."""
    found = read_options(given, READ, _OF_SPARK)
    if len({"topic", "topicPattern"} & found.keys()) != 1:
        raise SourceError(
            "MISSING_OPTION", "no topics to read; set either option topic or topicPattern"
        )
    _reject_pairs(
        found,
        ("startingOffsets", "startingTimestamp"),
        ("endingOffsets", "endingTimestamp"),
        ("tags", "sql92"),
    )
    _reject_reversed(found, "startingTimestamp", "endingTimestamp")
    _reject_reversed(found, "minOffsetsPerTrigger", "maxOffsetsPerTrigger")
    _cluster(found)
    return found


def read_options_of(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a read. Raises SourceError that names every invalid option."""
    found = check_read_options(given)
    if is_stream:
        _reject_in_streams(found)
    starting = found.get("startingOffsets", LATEST if is_stream else EARLIEST)
    ending = found.get("endingOffsets", LATEST)
    if not is_stream and (starting == LATEST or ending == EARLIEST):
        raise SourceError(
            "WRONG_OPTION",
            "a batch that starts at the latest or ends at the earliest offset is empty",
        )
    return ReadOptions(
        cluster=_cluster(found),
        topics=found["topic"] if "topic" in found else found["topicPattern"],
        columns=found.get("columns", ()),
        start=Bound(starting, found.get("startingTimestamp")),
        end=Bound(ending, found.get("endingTimestamp")),
        filter=MessageFilter(found.get("tags", "*"), found.get("sql92", "")),
        pushdown=found.get("pushdown", False),
        partitioning=Partitioning(
            rows_max=found.get("maxRowsPerPartition"), partitions_min=found.get("minPartitions", 1)
        ),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        group=found.get("group"),
        trigger=TriggerLimits(
            rows_max=found.get("maxOffsetsPerTrigger"),
            rows_min=found.get("minOffsetsPerTrigger", 1),
            delay_ms=found.get("maxTriggerDelay", 15 * 60_000),
        ),
        pull_count=found.get("pullBatchSize"),
    )


def _reject_in_streams(found: dict[str, Any]) -> None:
    if {"endingOffsets", "endingTimestamp"} & found.keys():
        raise SourceError(
            "WRONG_OPTION", "a stream has no end; endingOffsets and endingTimestamp are for batches"
        )
    if found.get("pushdown"):
        raise SourceError(
            "WRONG_OPTION", "Spark does not push filters into streams; pushdown is for batches"
        )


def _reject_pairs(found: dict[str, Any], *pairs: tuple[str, str]) -> None:
    for first, second in pairs:
        if first in found and second in found:
            raise SourceError("WRONG_OPTION", f"set either {first} or {second}, not both")


def _reject_reversed(found: dict[str, Any], low: str, high: str) -> None:
    if low in found and high in found and found[low] > found[high]:
        raise SourceError(
            "WRONG_OPTION", f"{low} ({found[low]}) must not exceed {high} ({found[high]})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Validated options for writing to topics."""

    cluster: ClusterOptions
    topic: str | None
    group: str
    idempotent: bool
    checkpoint: str | None = None
    """Where an idempotent stream keeps its progress."""


def write_options_of(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Parse the options of a write. Raises SourceError that names every invalid option."""
    found = read_options(given, WRITE, _OF_SPARK)
    idempotent = found.get("idempotent", False)
    if idempotent and "topic" not in found:
        raise SourceError("MISSING_OPTION", "idempotent=true needs the option topic")
    checkpoint = None
    if idempotent and is_stream:
        by_name = {name.lower(): value for name, value in given.items()}
        checkpoint = by_name.get("checkpointlocation")
        if not checkpoint:
            raise SourceError(
                "MISSING_OPTION",
                "idempotent=true needs the option checkpointLocation at this query: the sink keeps "
                "there where its last micro-batch began",
            )
    return WriteOptions(
        cluster=_cluster(found),
        topic=found.get("topic"),
        group=found.get("group", "spark"),
        idempotent=idempotent,
        checkpoint=checkpoint,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Validated options for reading a store directory."""

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
    """Parse the options of a store table. Raises SourceError that names every invalid option."""
    found = read_options(given, STORE, _OF_SPARK)
    if "path" not in found:
        raise SourceError("MISSING_OPTION", "option path is missing; set it to a store directory")
    return StoreOptions(
        path=found["path"],
        columns=found.get("columns", ()),
        topics=found.get("topic"),
        starting_ms=found.get("startingTimestamp"),
        ending_ms=found.get("endingTimestamp"),
        tags=found.get("tags", "*"),
        verify=found.get("verify", True),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        partition_bytes_max=found.get("maxPartitionBytes", 128 * 1024 * 1024),
    )


__all__ = [
    "EARLIEST",
    "LATEST",
    "ClusterOptions",
    "ReadOptions",
    "StoreOptions",
    "WriteOptions",
    "read_options_of",
    "store_options_of",
    "write_options_of",
]
