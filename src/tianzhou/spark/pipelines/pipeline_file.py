"""Parse a file into a `Pipeline`. Errors name the file, the line and the key."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import read_duration_ms, read_options
from tianzhou.spark.options import READ, WRITE, read_options_of
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import (
    UPSERT_DATABASES,
    JdbcSink,
    Options,
    ParquetSink,
    Pipeline,
    TopicSink,
)
from tianzhou.spark.pipelines.places import Document, Path, read_document
from tianzhou.spark.pipelines.units import read_charset, read_interval, read_size

_ERROR: Final = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_KEY: Final = re.compile(r"(?:source|decode|transform|sinks)(?:\.\w+)*")
_UNKNOWN: Final = re.compile(r"unknown field `(\w+)`")

# JSON terms in messages of the validator, and the YAML terms for them.
_WORDS: Final = {
    "object missing": "missing",
    "object": "mapping",
    "array": "list",
    "null": "nothing",
    "invalid enum value": "there is no",
}


def load(file: FilePath, *, given: Mapping[str, Any] | None = None) -> Pipeline:
    """Load a pipeline. `given` overrides keys: `{"source.nameserver": "..."}`. Raises
    PipelineError."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file} cannot be read: {error}") from error
    return parse(text, str(file), given=given)


def parse(text: str, file: str, *, given: Mapping[str, Any] | None = None) -> Pipeline:
    document = read_document(text, file)
    for key, value in (given or {}).items():
        _put(document, key.split("."), value)
    try:
        pipeline = msgspec.convert(document.data, Pipeline)
    except msgspec.ValidationError as error:
        raise _explained(document, error) from error
    _check(document, pipeline)
    return pipeline


def located(text: str, file: str, error: PipelineError) -> PipelineError:
    """Add file and line to an error of planning, whose message starts with the key."""
    key = _KEY.match(str(error))
    if key is None:
        return error
    path: Path = tuple(int(step) if step.isdigit() else step for step in key[0].split("."))
    return read_document(text, file).error(path, str(error))


def _put(document: Document, steps: Sequence[str], value: object) -> None:
    place = document.data
    for step in steps[:-1]:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    place[steps[-1]] = value


def _explained(document: Document, error: msgspec.ValidationError) -> PipelineError:
    found = _ERROR.fullmatch(str(error))
    assert found is not None
    path: Path = tuple(
        int(rank) if rank else name for name, rank in _STEP.findall(found["path"] or "")
    )
    text = found["text"]
    allowed = _allowed(path, document.data)
    where = f" in {_dotted(path)}" if path else ""
    unknown = _UNKNOWN.search(text)
    if unknown:
        return document.error((*path, unknown[1]), _not_known(unknown[1], allowed, where))
    if text.startswith("Invalid value") and path[-1:] == ("type",):
        return document.error(
            path,
            f"invalid type {text[14:]} of {_dotted(path[:-1])}; types are "
            f"{', '.join(_tags(path[:-1], document.data))}",
        )
    plain = text[0].lower() + text[1:]
    kind = _kind_at(path, document.data)
    if isinstance(kind, inspect.LiteralType):
        plain += f"; allowed are {', '.join(map(str, kind.values))}"
    if "missing required field" in text and allowed:
        plain += f"; allowed are {', '.join(allowed)}"
    for theirs, ours in _WORDS.items():
        plain = plain.replace(theirs, ours)
    return document.error(path, f"{_dotted(path) or 'the file'}: {plain}")


def _not_known(key: str, allowed: Sequence[str], where: str) -> str:
    near = get_close_matches(key, allowed, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key {key!r}{where}; {hint}allowed are {', '.join(allowed)}"


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _allowed(path: Path, data: Any) -> list[str]:
    """Return the allowed keys of the mapping at a path."""
    kind = _kind_at(path, data)
    return [one.encode_name for one in kind.fields] if isinstance(kind, inspect.StructType) else []


def _tags(path: Path, data: Any) -> list[str]:
    """Return the allowed types of the mapping at a path."""
    kind = _kind_at(path[:-1], data)
    item = kind.item_type if isinstance(kind, inspect.ListType) else kind
    kinds = item.types if isinstance(item, inspect.UnionType) else ()
    return [str(one.tag) for one in kinds if isinstance(one, inspect.StructType)]


def _kind_at(path: Path, data: Any) -> inspect.Type | None:
    kind: inspect.Type | None = inspect.type_info(Pipeline)
    for step in path:
        data = _inner(data, step)
        if isinstance(kind, inspect.StructType):
            kind = next((one.type for one in kind.fields if one.encode_name == step), None)
        elif isinstance(kind, inspect.ListType):
            kind = kind.item_type
        if isinstance(kind, inspect.UnionType):
            kind = _chosen(kind, data)
    return kind


def _inner(data: Any, step: str | int) -> Any:
    try:
        return data[step]
    except (KeyError, IndexError, TypeError):
        return None


def _chosen(union: inspect.UnionType, data: Any) -> inspect.Type | None:
    structs = [one for one in union.types if isinstance(one, inspect.StructType)]
    asked = cast("dict[str, Any]", data).get("type") if isinstance(data, dict) else None
    return next((one for one in structs if one.tag == asked), structs[0] if structs else None)


# Checks beyond types


def _check(document: Document, pipeline: Pipeline) -> None:
    _check_options(document, ("source",), pipeline.source, READ)
    if "nameserver" in pipeline.source:
        try:
            read_options_of(as_text(pipeline.source), is_stream=True)
        except SourceError as error:
            raise document.error(("source",), f"source: {_plain(error)}") from error
    _check_decode(document, pipeline)
    transform = pipeline.transform
    if transform.window is not None and transform.watermark is None:
        raise document.error(
            ("transform", "window"),
            "transform.window needs transform.watermark: without one, every window stays in "
            "memory, because a late event could still change it",
        )
    if transform.watermark is not None and (limit := transform.watermark.max_future) is not None:
        path: Path = ("transform", "watermark", "maxFuture")
        _checked(document, path, lambda: read_duration_ms(limit))
    for rank, sink in enumerate(pipeline.sinks):
        here: Path = ("sinks", rank)
        if isinstance(sink, TopicSink):
            _check_options(document, (*here, "options"), sink.options, WRITE)
        if isinstance(sink, JdbcSink):
            _check_keys(document, here, sink)
        if isinstance(sink, ParquetSink):
            _checked(document, (*here, "compactBelow"), lambda s=sink: read_size(s.compact_below))
            _checked(
                document,
                (*here, "retention"),
                lambda s=sink: read_duration_ms(s.retention) if s.retention else None,
            )
    trigger = pipeline.trigger
    if trigger.interval is not None and trigger.available_now:
        raise document.error(("trigger",), "trigger: set either interval or availableNow, not both")
    if trigger.interval is not None:
        interval = trigger.interval
        _checked(document, ("trigger", "interval"), lambda: read_interval(interval))


def _check_decode(document: Document, pipeline: Pipeline) -> None:
    decode = pipeline.decode
    _checked(document, ("decode", "charset"), lambda: read_charset(decode.charset))
    if decode.format == "protobuf" and not (decode.descriptor and decode.message):
        raise document.error(
            ("decode",),
            "decode: protobuf needs descriptor (the file that protoc writes with "
            "--descriptor_set_out) and message (the full name)",
        )
    if decode.format == "avro" and decode.schema == "infer":
        raise document.error(("decode",), "decode: avro needs schema (the path of the schema file)")


def _check_keys(document: Document, here: Path, sink: JdbcSink) -> None:
    if sink.keys and not sink.exactly_once:
        raise document.error(
            (*here, "exactlyOnce"), f"{_dotted(here)}: keys need exactlyOnce; remove one of them"
        )
    kind = sink.url.removeprefix("jdbc:").partition(":")[0]
    if sink.keys and kind not in UPSERT_DATABASES:
        raise document.error(
            (*here, "keys"),
            f"{_dotted(here)}: keys are not supported for {kind!r}; supported are "
            f"{', '.join(UPSERT_DATABASES)}",
        )


def _check_options(document: Document, path: Path, given: Options, known: Any) -> None:
    for key, value in given.items():
        try:
            read_options(as_text({key: value}), known, frozenset())
        except SourceError as error:
            raise document.error((*path, key), f"{_dotted(path)}: {_plain(error)}") from error


def _checked(document: Document, path: Path, read: Any) -> None:
    try:
        read()
    except ValueError as error:
        raise document.error(path, f"{_dotted(path)} {error}") from error


def _plain(error: SourceError) -> str:
    return str(error).partition("] ")[2]


def as_text(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Convert options to text, as Spark takes them."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }
