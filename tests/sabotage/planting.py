"""Planting a bug: a function of the product is recompiled with a piece of its code replaced."""

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """In this function (`module:Class.name`), `old` is replaced by `new`."""

    where: str
    old: str
    new: str


class Bug(NamedTuple):
    name: str
    suite: str
    """The checks that must catch it."""
    seed: int
    """The first seed that catches it, so that earlier seeds are skipped."""
    edits: tuple[Edit, ...]


@contextmanager
def planted(bug: Bug) -> Generator[None]:
    """Give the product the bug while the context lasts. No file is changed."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for edit in bug.edits:
            undo += _plant(edit)
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def _plant(edit: Edit) -> list[tuple[Any, str, Any]]:
    module_name, _, path = edit.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    broken = _compiled(module, original, name, edit)
    owners = [owner] if outer else list(_users(original, name))
    for one in owners:
        setattr(one, name, broken)
    return [(one, name, original) for one in owners]


def _compiled(module: ModuleType, original: Any, name: str, edit: Edit) -> Any:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(original)))
    places = list(_wrapped(edit.old).finditer(source))
    assert len(places) == 1, f"{edit.where} has {edit.old!r} {len(places)} times: adapt the bug"
    start, end = places[0].span()
    found: dict[str, Any] = {}
    sabotaged = source[:start] + edit.new + source[end:]
    exec(compile(sabotaged, f"<sabotaged {edit.where}>", "exec"), module.__dict__, found)
    return found[name]


def _wrapped(words: str) -> re.Pattern[str]:
    """Match this code however the formatter wraps it."""
    pattern = r"\s+".join(re.escape(word) for word in words.split())
    pattern = re.sub(r"(\\[(\[]|\{)", r"\1\\s*", pattern)
    pattern = re.sub(r"(\\[)\]]|\})", r",?\\s*\1", pattern)
    inner = words.strip()
    before, after = words.split(inner)
    return re.compile(re.escape(before) + pattern + re.escape(after))


def _users(original: Any, name: str) -> Iterator[ModuleType]:
    """Every module of ours, tests included, that has the function under the same name."""
    for module_name, module in tuple(sys.modules.items()):
        if (
            module_name.startswith(("tianzhou.", "test_"))
            and getattr(module, name, None) is original
        ):
            yield module
