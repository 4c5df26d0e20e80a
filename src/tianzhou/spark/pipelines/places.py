"""YAML with the line number of every value, for error messages."""

import os
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from tianzhou.spark.pipelines.errors import PipelineError

_yaml: Any = import_module("yaml")

Path = tuple[str | int, ...]
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class _Loader(_yaml.SafeLoader):
    """YAML without timestamps: `2026-11-15T08:00:00` stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in _yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content, and the line of each part."""

    file: str
    data: Any
    lines: dict[Path, int]

    def error(self, path: Path, message: str) -> PipelineError:
        """Return an error at the line of the innermost part that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return PipelineError(f"{self.file}:{self.lines.get(path, 1)}: {message}")


def read_document(text: str, file: str) -> Document:
    """Parse YAML and expand `${NAME}` and `${NAME:-default}` from the environment. Raises
    PipelineError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        found = Document(file, None, {})
        if node is None:
            raise PipelineError(f"{file}:1: the file is empty")
        return Document(file, _value(loader, node, (), found), found.lines)
    except _yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PipelineError(f"{file}:{line}: invalid YAML: {error.problem}") from error
    except _yaml.YAMLError as error:
        raise PipelineError(f"{file}:1: invalid YAML: {error}") from error


def read_value(text: str) -> Any:
    """Parse a value of the command line as YAML."""
    return read_document(text, "<command line>").data


def _value(loader: Any, node: Any, path: Path, document: Document) -> Any:
    document.lines[path] = node.start_mark.line + 1
    if isinstance(node, _yaml.MappingNode):
        return _mapping(loader, node, path, document)
    if isinstance(node, _yaml.SequenceNode):
        return [
            _value(loader, item, (*path, rank), document) for rank, item in enumerate(node.value)
        ]
    value = loader.construct_object(node)
    return _expanded(value, path, document) if isinstance(value, str) else value


def _mapping(loader: Any, node: Any, path: Path, document: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in node.value:
        here = (*path, str(key.value))
        document.lines[here] = key.start_mark.line + 1
        if not isinstance(key, _yaml.ScalarNode):
            raise document.error(here, "a key must be a plain value")
        if key.value in found:
            raise document.error(here, f"duplicate key {key.value!r}")
        found[str(key.value)] = _value(loader, item, here, document)
        document.lines[here] = key.start_mark.line + 1
    return found


def _expanded(text: str, path: Path, document: Document) -> str:
    def replaced(match: re.Match[str]) -> str:
        default: str | None = match[2]
        value = os.environ.get(match[1], default)
        if value is None:
            raise document.error(
                path,
                f"environment variable {match[1]} is not set; set it, or write "
                f"${{{match[1]}:-default}}",
            )
        return value

    return _VARIABLE.sub(replaced, text)
