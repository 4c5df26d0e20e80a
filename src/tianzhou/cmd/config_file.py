"""Read a settings file: TOML, or RocketMQ's `key=value` lines."""

import tomllib
from pathlib import Path
from typing import TypeVar, overload

from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError, load, masked

First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Fourth = TypeVar("Fourth")


def read(path: Path) -> dict[str, object]:
    """Read names and values. A file whose name ends in .toml is TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {error}") from error
    values: dict[str, object] = {}
    wrong: list[str] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, sign, value = line.partition("=")
        if not sign:
            found = masked(line, repr(line[:80]))
            wrong.append(f"{path}, line {number}: expected name=value, found {found}")
        values[name.strip()] = value.strip()
    if wrong:
        raise UsageError("; ".join(wrong))
    return values


@overload
def load_all(
    kinds: tuple[type[First], type[Second]], values: dict[str, object]
) -> tuple[tuple[First, Second], list[str]]: ...
@overload
def load_all(
    kinds: tuple[type[First], type[Second], type[Third], type[Fourth]], values: dict[str, object]
) -> tuple[tuple[First, Second, Third, Fourth], list[str]]: ...
def load_all(
    kinds: tuple[type[object], ...], values: dict[str, object]
) -> tuple[tuple[object, ...], list[str]]:
    """Load several settings objects from one file; also return the unknown names.

    Reports the problems of all of them together, as one SettingsError.
    """
    problems: list[str] = []
    made: list[object] = []
    unknown = set(values)
    for kind in kinds:
        try:
            settings, missed = load(kind, values)
        except SettingsError as error:
            problems += error.problems
        else:
            made.append(settings)
            unknown &= set(missed)
    if problems:
        raise SettingsError(problems)
    return tuple(made), sorted(unknown)
