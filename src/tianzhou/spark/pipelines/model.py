"""The content of a `pipeline.yml`. Everything here is validated before a session is started.

The keys of `source` and of a sink of type `topic` are the options of `format("rocketmq")`, under
the same names in a file as in a program.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

Options = dict[str, str | int | bool]
"""Options of a connector: YAML has numbers and booleans, Spark takes text."""

Name = Annotated[str, Meta(pattern=r"^[\w.-]+$", max_length=100)]
Format = Literal["json", "avro", "protobuf", "text", "raw"]
Framing = Literal["none", "confluent"]
Mode = Literal["append", "update", "complete"]
UPSERT_DATABASES: Final = ("postgresql", "mysql", "mariadb", "sqlite")
"""Databases, as JDBC URLs name them, for which a sink may have keys."""


class Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping in the file. Unknown keys are errors."""


class Decode(Part, frozen=True):
    """How to decode bodies. The column `body` holds the result."""

    format: Format = "raw"
    schema: str = "infer"
    """json: columns as in CREATE TABLE, or `infer`. avro: the file with the schema."""
    sample: int = 1000
    """Number of messages at each end of the topic from which a schema is inferred."""
    descriptor: str | None = None
    """protobuf: the file that `protoc --descriptor_set_out --include_imports` writes."""
    message: str | None = None
    """protobuf: the full name of the message."""
    charset: str = "utf-8"
    """json: the charset of the bodies, such as gbk or gb18030."""
    rounding: bool = False
    """json: whether a number with more digits than its DECIMAL column holds is rounded instead of
    rejected."""
    framing: Framing = "none"
    """`confluent`: bodies begin with the prefix that serialisers of a schema registry write."""
    quarantine: str | None = None
    """Table for rows that cannot be decoded. Defaults to `<checkpoint>/quarantine`."""


class Watermark(Part, frozen=True):
    """How late events may be. Adds the column `eventTime`."""

    column: str
    """An expression that returns a timestamp, such as `body.paidAt`."""
    delay: str
    max_future: str | None = "1h"
    """An event that is later than its message was stored by more than this goes to quarantine,
    because it would make all other events late. null turns the check off."""


class Window(Part, frozen=True):
    """Groups rows by time and by other expressions."""

    size: str
    select: dict[str, str]
    """Name of a column to an expression over the rows of a group."""
    slide: str | None = None
    group_by: dict[str, str] = field(default_factory=dict[str, str])
    """Name of a column to its expression."""


class Transform(Part, frozen=True):
    """Steps, applied in this order. Each is optional."""

    watermark: Watermark | None = None
    window: Window | None = None
    sql: str | None = None
    """One SELECT from the table `messages`."""
    python: str | None = None
    """`file.py:function` or `package.module:function`: DataFrame in, DataFrame out."""


class ParquetSink(Part, frozen=True, tag="parquet"):
    """A table of Parquet files, with exactly-once rows."""

    path: str
    date: str | None = None
    """The timestamp whose day becomes the column `date`. Defaults to `storeTimestamp` or
    `window.start`, whichever exists."""
    partition_by: list[str] = field(default_factory=lambda: ["date", "topic"])
    """Columns that the rows do not have are ignored."""
    compact_files: Annotated[int, Meta(ge=2)] = 16
    """Number of small files in a directory from which on they are merged."""
    compact_below: str = "64m"
    """Files below this size are small."""
    retention: str | None = None
    """How long rows are kept, in whole days."""


class TopicSink(Part, frozen=True, tag="topic"):
    """Messages in a topic. `options` are those of the connector."""

    options: Options
    columns: list[str] | None = None
    """Expressions for the columns of a message: `to_json(body) AS body`, `tags`, `keys`, ...
    Defaults to all columns of the rows."""
    mode: Mode = "append"


class JdbcSink(Part, frozen=True, tag="jdbc"):
    """A database table."""

    url: str
    table: str
    keys: list[str] = field(default_factory=list[str])
    """Columns that identify a row: a later row with the same values replaces it. PostgreSQL, MySQL,
    MariaDB and SQLite."""
    options: Options = field(default_factory=Options)
    """Options of Spark's JDBC source: user, password, driver, batchsize, ..."""
    exactly_once: bool = True
    """Whether rows and a record of their micro-batch are stored in one transaction. Without it, a
    crash may cause duplicate rows."""
    batch_column: str | None = None
    """A BIGINT column that receives the number of the micro-batch."""
    mode: Mode = "append"


class ConsoleSink(Part, frozen=True, tag="console"):
    """Rows printed to the terminal."""

    rows: Annotated[int, Meta(ge=1)] = 20
    mode: Mode = "append"


Sink = ParquetSink | TopicSink | JdbcSink | ConsoleSink


class Trigger(Part, frozen=True):
    """When a micro-batch starts. Defaults to as soon as there are messages."""

    interval: str | None = None
    available_now: bool = False
    """Process all messages that exist now, in as many micro-batches as needed, then stop."""


class Pipeline(Part, frozen=True):
    """A pipeline: topics, the processing of their messages, and the sinks."""

    name: Name
    source: Options
    sinks: Annotated[list[Sink], Meta(min_length=1)]
    description: str = ""
    decode: Decode = Decode()
    transform: Transform = Transform()
    trigger: Trigger = Trigger()
    checkpoint: str | None = None
    """Directory of the pipeline's progress. Defaults to `checkpoints/<name>`. Relative paths are
    relative to the file."""
    spark: dict[str, str | int | bool] = field(default_factory=dict[str, str | int | bool])
    """Settings of the Spark session."""
