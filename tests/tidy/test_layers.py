"""Who may import what. `lint-imports` holds the layers; here is what it does not know."""

import ast
import sys
import tomllib
from typing import Any

import pytest
from sources import ROOT, SRC, name_of, nodes_of, python_files, roots_imported

PURE = ("base", "record", "wire")
ACTS = {"asyncio", "socket", "ssl", "threading", "time", "random", "logging", "os", "mmap"}
STORE_BANS = {"asyncio", "socket", "logging", "random"}

# Which packages of others a package of ours may use, besides the standard library.
THIRD_PARTY = {
    "base": set[str](),
    "record": {"numpy", "isal", "lz4", "zstandard"},
    "wire": {"msgspec"},
    "store": {"msgspec", "numpy"},
    "admin": {"click", "msgspec", "rich"},
    "cmd": {"click", "msgspec", "rich"},
    "testing": set[str](),
}

# Files that may wait for something. There is no server yet, so there are none.
ASYNC_SHELLS: tuple[str, ...] = ()


def packages() -> list[str]:
    return sorted(path.parent.name for path in SRC.glob("*/__init__.py"))


def contracts() -> dict[str, dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {found["name"]: found for found in project["tool"]["importlinter"]["contracts"]}


def of_package(package: str) -> list[Any]:
    return [path for path in python_files("src") if (SRC / package) in path.parents]


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_not_act(package: str) -> None:
    for path in of_package(package):
        assert not roots_imported(path) & ACTS, f"{name_of(path)} reaches for the world"


def test_the_store_waits_for_nobody_and_says_nothing() -> None:
    for path in of_package("store"):
        assert not roots_imported(path) & STORE_BANS, f"{name_of(path)} is not for the store"


def test_code_of_others_is_used_where_it_was_agreed() -> None:
    assert set(packages()) == THIRD_PARTY.keys()
    for package, allowed in THIRD_PARTY.items():
        for path in of_package(package):
            foreign = roots_imported(path) - sys.stdlib_module_names - {"tianzhou"}
            assert foreign <= allowed, f"{name_of(path)} imports {foreign - allowed}"


def test_async_stays_in_its_shells() -> None:
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for path in python_files("src"):
        if name_of(path) not in ASYNC_SHELLS:
            found = [node.lineno for node in nodes_of(path) if isinstance(node, waiting)]
            assert not found, f"{name_of(path)} is asynchronous in lines {found}"


def test_every_package_has_a_place_in_the_layers() -> None:
    """A package that the contract does not name may import whatever it likes."""
    layers = contracts()["layers: think before you edit this"]["layers"]
    named = {word.strip(" ()") for layer in layers for word in layer.split("|")}
    ours = {f"tianzhou.{package}" for package in packages()}
    assert ours - named == {"tianzhou.testing"}


def test_no_package_may_use_the_test_kit() -> None:
    kept_out = contracts()["the test kit is for tests"]["source_modules"]
    ours = {f"tianzhou.{package}" for package in packages()}
    assert ours - {"tianzhou.testing"} == set(kept_out)
