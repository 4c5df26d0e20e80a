"""What a `pipeline.yml` says, as values. Everything here is checked before a session is started.

The keys of `source` and of a sink of type `topic` are the options of `format("rocketmq")`, under
the same names: there is one vocabulary for topics, in a file as in a program.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Options = dict[str, str | int | bool]
"""Options of a connector: YAML knows numbers and truth, Spark takes text."""

Name = Annotated[str, Meta(pattern=r"^[\w.-]+$", max_length=100)]
Format = Literal["json", "avro", "protobuf", "text", "raw"]
Mode = Literal["append", "update", "complete"]


class Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping in the file. Keys that are not known are mistakes."""


class Decode(Part, frozen=True):
    """How bodies are read. The column `body` holds the result."""

    format: Format = "raw"
    schema: str = "infer"
    """json: columns as in CREATE TABLE, or `infer`. avro: the file with the schema."""
    sample: int = 1000
    """Messages that a schema is inferred from, at each end of the topic."""
    descriptor: str | None = None
    """protobuf: the file that `protoc --descriptor_set_out --include_imports` writes."""
    message: str | None = None
    """protobuf: the full name of the message."""
    quarantine: str | None = None
    """Where rows go that can't be decoded: a table of its own. `<checkpoint>/quarantine` unless
    given."""


class Watermark(Part, frozen=True):
    """How late events may be. They get the column `eventTime`."""

    column: str
    """An expression that gives a timestamp, such as `body.paidAt`."""
    delay: str


class Window(Part, frozen=True):
    """Rows gathered by time, and by whatever else."""

    size: str
    select: dict[str, str]
    """Name of a column to an expression over the rows of a group."""
    slide: str | None = None
    group_by: dict[str, str] = field(default_factory=dict[str, str])
    """Name of a column to its expression."""


class Transform(Part, frozen=True):
    """Steps in this order, each if it is there."""

    watermark: Watermark | None = None
    window: Window | None = None
    sql: str | None = None
    """One SELECT from the table `messages`."""
    python: str | None = None
    """`file.py:function` or `package.module:function`: DataFrame in, DataFrame out."""


class ParquetSink(Part, frozen=True, tag="parquet"):
    """A table of Parquet files: each row once, whatever is killed when."""

    path: str
    date: str | None = None
    """The timestamp whose day rows are filed under: `storeTimestamp` or `window.start`, whichever
    there is, unless given."""
    partition_by: list[str] = field(default_factory=lambda: ["date", "topic"])
    """Those that the rows don't have are left out."""
    compact_files: Annotated[int, Meta(ge=2)] = 16
    """Small files of one directory that are put together."""
    compact_below: str = "64m"
    """What counts as small."""
    retention: str | None = None
    """How long rows are kept, by their day."""


class TopicSink(Part, frozen=True, tag="topic"):
    """Messages. `options` are those of the connector."""

    options: Options
    columns: list[str] | None = None
    """What a message gets, as expressions: `to_json(body) AS body`, `tags`, `keys`, `topic`, ...
    All columns of the rows, unless given."""
    mode: Mode = "append"


class JdbcSink(Part, frozen=True, tag="jdbc"):
    """A table of a database."""

    url: str
    table: str
    options: Options = field(default_factory=Options)
    """Spark's own: user, password, driver, batchsize, ..."""
    batch_column: str | None = None
    """A column of the table, BIGINT, that gets the number of the micro-batch: a repeated one first
    takes away what it wrote. Without it rows may come twice after a crash."""
    mode: Mode = "append"


class ConsoleSink(Part, frozen=True, tag="console"):
    """Rows on the screen."""

    rows: Annotated[int, Meta(ge=1)] = 20
    mode: Mode = "append"


Sink = ParquetSink | TopicSink | JdbcSink | ConsoleSink


class Trigger(Part, frozen=True):
    """When a micro-batch begins: as soon as there is something, unless told otherwise."""

    interval: str | None = None
    available_now: bool = False
    """Everything there is now, in as many micro-batches as it takes; then end."""


class Pipeline(Part, frozen=True):
    """Topics, what is done with their messages, and where the result goes."""

    name: Name
    source: Options
    sinks: Annotated[list[Sink], Meta(min_length=1)]
    description: str = ""
    decode: Decode = Decode()
    transform: Transform = Transform()
    trigger: Trigger = Trigger()
    checkpoint: str | None = None
    """How far the pipeline is. `checkpoints/<name>` unless given. Relative paths begin where the
    file is."""
    spark: dict[str, str | int | bool] = field(default_factory=dict[str, str | int | bool])
    """Settings of the session."""
