"""Reading topics and decoding their messages."""

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tianzhou.spark import plan
from tianzhou.spark.errors import SourceError
from tianzhou.spark.options import ReadOptions, read_options_of
from tianzhou.spark.pipelines import decode
from tianzhou.spark.pipelines.decode import Decoder
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Decode, Pipeline
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import as_text
from tianzhou.spark.tables.columns import merged
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.topics import Topics, translated_errors

FORMAT = "rocketmq"


def checked_options(pipeline: Pipeline) -> dict[str, str]:
    """Return the source's options. Raises PipelineError if the NameServer is missing."""
    options = as_text(pipeline.source)
    if "nameserver" not in options:
        raise PipelineError(
            "source.nameserver is missing; set it in the file, pass --nameserver host:port, or set "
            "TIANZHOU_NAMESERVER"
        )
    return options


def check_source(options: Mapping[str, str]) -> None:
    """Check that the topics can be read before a query is started. Raises PipelineError."""
    try:
        read = read_options_of(options, is_stream=True)
        with translated_errors(read), read.cluster.connect() as brokers:
            Topics(brokers, read).queues()
    except SourceError as error:
        raise PipelineError(f"source: {error}") from error


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the messages as a stream that starts at `earliest` by default."""
    chosen = {"startingOffsets": "earliest"} if "startingTimestamp" not in options else {}
    return spark.readStream.format(FORMAT).options(**{**chosen, **options}).load()


def decoder(spark: SparkSession, pipeline: Pipeline, place: PipelineDirectory) -> Decoder:
    """Return the decoder of a pipeline. Raises PipelineError."""
    how = pipeline.decode
    match how.format:
        case "raw":
            return decode.raw()
        case "text":
            return decode.text()
        case "json":
            return _json(spark, pipeline, place)
        case "avro":
            from tianzhou.spark.pipelines.decode_avro import avro_of

            return avro_of(place.directory / how.schema)
        case "protobuf":
            return _protobuf(how, place.directory)


def _protobuf(how: Decode, directory: Path) -> Decoder:
    from tianzhou.spark.pipelines.decode_protobuf import protobuf_of

    assert how.descriptor is not None, "the file was checked"
    assert how.message is not None, "the file was checked"
    return protobuf_of(directory / how.descriptor, how.message)


def _json(spark: SparkSession, pipeline: Pipeline, place: PipelineDirectory) -> Decoder:
    from tianzhou.spark.pipelines.decode_json import inferred, json_of, parsed_schema

    how = pipeline.decode
    if how.schema != "infer":
        return json_of(parsed_schema(how.schema))
    found = inferred(samples(spark, checked_options(pipeline), how.sample), spark)
    known = place.schema()
    try:
        schema = found if known is None else merged(known, found)
    except TableError as error:
        raise PipelineError(
            f"decode.schema is `infer`, and the topic has changed: {error}"
        ) from error
    place.keep_schema(schema)
    return json_of(schema)


def samples(spark: SparkSession, given: Mapping[str, str], count: int) -> DataFrame:
    """Return messages from both ends of the topics."""
    named = {key: value for key, value in given.items() if key.lower() not in _STREAM_ONLY}
    first, last = _ends(read_options_of({**named, "columns": "body"}, is_stream=False), count)
    frames = [_between(spark, named, *span) for span in (first, last)]
    return frames[0].union(frames[1])


def _between(
    spark: SparkSession, named: Mapping[str, str], start: plan.OffsetJson, end: plan.OffsetJson
) -> DataFrame:
    # Each frame needs its own reader: options belong to the reader until it loads.
    reader = spark.read.format(FORMAT).options(**named)
    reader = reader.option("startingOffsets", json.dumps(start))
    return reader.option("endingOffsets", json.dumps(end)).load().select("body")


_STREAM_ONLY = {
    "startingoffsets",
    "startingtimestamp",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "columns",
}

_Span = tuple[plan.OffsetJson, plan.OffsetJson]


def _ends(options: ReadOptions, count: int) -> tuple[_Span, _Span]:
    """Return the offsets of the first and the last messages of the topics, without overlap."""
    with translated_errors(options), options.cluster.connect() as brokers:
        topics = Topics(brokers, options)
        queues = topics.queues()
        earliest, latest = topics.earliest(queues), topics.latest(queues)
    each = max(1, count // max(1, len(queues)))
    head = {queue: min(earliest[queue] + each, latest[queue]) for queue in queues}
    tail = {queue: max(latest[queue] - each, head[queue]) for queue in queues}
    as_json = plan.to_json
    return (as_json(earliest), as_json(head)), (as_json(tail), as_json(latest))
