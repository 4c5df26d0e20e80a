"""Reading a settings file: TOML, or RocketMQ's `key=value` lines."""

import tomllib
from pathlib import Path
from typing import TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError, load

First = TypeVar("First")
Second = TypeVar("Second")


def read(path: Path) -> dict[str, object]:
    """Names and values. A file whose name ends in .toml is TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8: {error}") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {error}") from error
    values: dict[str, object] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, sign, value = line.partition("=")
        if not sign:
            raise UsageError(f"{path}, line {number}: expected name=value, found {line[:80]!r}")
        values[name.strip()] = value.strip()
    return values


def load_two(
    first: type[First], second: type[Second], values: dict[str, object]
) -> tuple[First, Second, list[str]]:
    """Two settings objects from one file, and the names that neither knows.

    All problems of both are reported together.
    """
    problems: list[str] = []
    made: list[object] = []
    unknown: list[set[str]] = []
    for kind in (first, second):
        try:
            settings, missed = load(kind, values)
        except SettingsError as error:
            problems += error.problems
        else:
            made.append(settings)
            unknown.append(set(missed))
    if problems:
        raise SettingsError(problems)
    one, other = made
    assert isinstance(one, first)
    assert isinstance(other, second)
    return one, other, sorted(unknown[0] & unknown[1])
