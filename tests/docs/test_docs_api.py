"""The API reference: no public name is missing, and every one is documented."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType
from typing import cast

import pytest

from docs.pages import ROOT, Page
from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.client import errors
from tianzhou.client.sync.admin import blocking

sys.path.insert(0, str(ROOT / "tools"))

import gen_api

PACKAGES = (
    "tianzhou.client",
    "tianzhou.client.sync",
    "tianzhou.client.errors",
    "tianzhou.spark",
    "tianzhou.testing",
)
NO_EXAMPLE = {"tianzhou.testing.RequestCode", "tianzhou.testing.ResponseCode"}
"""Tables of numbers that are generated from `spec`."""
BLOCKING = "tianzhou.client.sync."
ERRORS = frozenset(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, TianzhouError)
)


def entries() -> list[str]:
    texts = (Page(f"docs/api/{name}.md").text for name in gen_api.pages())
    return [entry for text in texts for entry in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def test_api_pages_are_up_to_date() -> None:
    assert gen_api.main(["--check"]) == 0, "run tools/gen_api.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_api_pages_list_every_public_name(package: str) -> None:
    shown = {id(resolve(entry)) for entry in entries()}
    names = [name for name in gen_api.public_names(package) if gen_api.is_shown(name)]
    assert names
    assert not [name for name in names if id(gen_api.value_of(name)) not in shown]


def resolve(entry: str) -> object:
    return gen_api.value_of(entry)


def documented() -> list[str]:
    """Entries that can have a docstring: constants and aliases of types cannot."""
    kinds = (inspect.isclass, inspect.isfunction)
    return [entry for entry in entries() if any(is_kind(resolve(entry)) for is_kind in kinds)]


@pytest.mark.parametrize("entry", documented())
def test_public_name_has_a_docstring(entry: str) -> None:
    text = inspect.getdoc(resolve(entry)) or ""
    first = text.partition("\n")[0]
    assert text, f"{entry} has no docstring"
    assert not first.startswith(("Owner:", entry.rpartition(".")[2] + "(")), f"{entry}: {first}"
    assert first[0].isupper() or first[0] in "`'", f"{entry}: {first}"


def has_example(text: str) -> bool:
    return any(line.startswith(("    ", ">>> ")) for line in text.splitlines())


@pytest.mark.parametrize("entry", documented())
def test_public_class_has_an_example(entry: str) -> None:
    kind = resolve(entry)
    if not inspect.isclass(kind) or issubclass(kind, BaseException):
        return
    if entry in NO_EXAMPLE:
        return
    assert has_example(inspect.getdoc(kind) or ""), f"{entry} shows no example"


def public_methods() -> Iterator[tuple[str, FunctionType]]:
    """Methods and properties that public classes define themselves, by full name."""
    for entry in documented():
        for name, value in vars(resolve(entry)).items():
            method = value.fget if isinstance(value, property) else value
            method = method.func if isinstance(method, cached_property) else method
            method = getattr(method, "__func__", method)
            if inspect.isfunction(method) and not name.startswith("_"):
                yield f"{entry}.{name}", method


def test_public_methods_have_docstrings() -> None:
    missing = {name for name, method in public_methods() if not method.__doc__}
    assert not missing


def errors_raised(method: FunctionType) -> set[str]:
    """The public errors that the code of a method raises itself, or through `checked_...`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method)))):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) if name in ERRORS:
                found.add(name)
            case ast.Call(func=ast.Name(id=name)) if name.startswith(("checked_", "check_")):
                found.add("UsageError")
            case _:
                pass
    return found


def errors_named(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text) if word in ERRORS}


def unnamed_errors(method: FunctionType) -> set[str]:
    return errors_raised(method) - errors_named(method.__doc__ or "")


def test_public_methods_name_the_errors_that_they_raise() -> None:
    unnamed = {
        name: found for name, method in public_methods() if (found := unnamed_errors(method))
    }
    assert not unnamed


def test_docstring_check_detects_errors_that_are_not_named() -> None:
    def checked(value: int) -> int:
        """Return the value."""
        if value < 0:
            raise UsageError("negative")
        return value

    assert unnamed_errors(cast(FunctionType, checked)) == {"UsageError"}


def test_blocking_methods_name_the_errors_of_the_asyncio_methods() -> None:
    methods = dict(public_methods())
    unnamed: dict[str, set[str]] = {}
    for name, method in methods.items():
        inner = methods.get(name.replace(BLOCKING, "tianzhou.client."))
        if name.startswith(BLOCKING) and inner is not None:
            missing = errors_named(inner.__doc__ or "") - errors_named(method.__doc__ or "")
            if missing:
                unnamed[name] = missing
    assert not unnamed


def test_blocking_admin_methods_have_the_docstrings_of_the_asyncio_methods() -> None:
    async def status(name: str) -> str:
        """Return the state of a broker."""
        return name

    assert blocking(status).__doc__ == "Return the state of a broker."
