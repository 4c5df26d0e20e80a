"""Planting a bug: a function of the product is compiled anew with a few words changed."""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """In this function (`module:Class.name`) these words become those."""

    where: str
    old: str
    new: str


class Bug(NamedTuple):
    name: str
    suite: str
    """Which checks must catch it."""
    seed: int
    """The first seed that catches it, so that nobody waits for the others."""
    edits: tuple[Edit, ...]


@contextmanager
def planted(bug: Bug) -> Generator[None]:
    """While this lasts the product has the bug. No file is touched."""
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
    count = source.count(edit.old)
    assert count == 1, f"{edit.where} has {count} times {edit.old!r}: plant the bug anew"
    found: dict[str, Any] = {}
    code = compile(source.replace(edit.old, edit.new), f"<sabotaged {edit.where}>", "exec")
    exec(code, module.__dict__, found)
    return found[name]


def _users(original: Any, name: str) -> Iterator[ModuleType]:
    """Every module of ours that knows the function, under the same name; tests too."""
    for module_name, module in tuple(sys.modules.items()):
        if (
            module_name.startswith(("tianzhou.", "test_"))
            and getattr(module, name, None) is original
        ):
            yield module
