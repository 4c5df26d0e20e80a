"""Who may import what. `lint-imports` holds the layers; here is what it does not know."""

import ast
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from sources import (
    ROOT,
    SRC,
    name_of,
    nodes_of,
    place_of,
    python_files,
    roots_imported,
    tree_of,
)

PURE = ("base", "record", "wire", "raft", "filter", "client/core")
ACTS = {"asyncio", "socket", "ssl", "threading", "time", "random", "logging", "os", "mmap"}
STORE_BANS = {"asyncio", "socket", "logging", "random"}

# Which packages of others a package of ours, there or to come, may use.
THIRD_PARTY = {
    "base": set[str](),
    "record": {"isal", "lz4", "numpy", "zstandard"},
    "wire": {"msgspec"},
    "filter": set[str](),
    "raft": set[str](),
    "store": {"msgspec", "numpy"},
    "net": set[str](),
    "replication": {"msgspec"},
    "nameserver": {"msgspec"},
    "broker": {"msgspec", "prometheus_client"},
    "client": {"msgspec", "opentelemetry"},
    "spark": {"msgspec", "numpy", "py4j", "pyarrow", "pyspark"},
    "proxy": {"google", "grpc", "msgspec"},
    "dashboard": {"jinja2", "msgspec", "starlette"},
    "admin": {"click", "msgspec", "pyspark", "rich"},
    "cmd": {"click", "msgspec", "pyspark", "rich", "starlette", "uvicorn", "uvloop"},
    "testing": {"pytest"},
}

# Files that may wait for something, there or to come. Everything else decides, and returns.
ASYNC_SHELLS = (
    "net/acceptor.py",
    "net/server.py",
    "net/connect.py",
    "net/dial.py",
    "net/nameserver_connections.py",  # asks name servers, for registration
    "net/resolver.py",
    "replication/*_master.py",
    "replication/*_slave.py",
    "replication/raft_peers.py",
    "replication/raft_group.py",
    "replication/raft_witness.py",
    "broker/replica/raft.py",
    "nameserver/memory.py",
    "nameserver/server.py",
    "broker/server.py",
    "broker/replica/registration.py",  # asks name servers, and waits for their answers
    "broker/replica/master_slave.py",
    "broker/replica/following.py",
    "broker/replica/mode.py",  # the protocol: modes start and stop connections
    "broker/replica/standalone.py",
    "broker/replica/slave_sync.py",  # asks the master
    "client/admin/*",
    "client/aio/*",
    "client/consume/*",
    "client/session/*",
    "client/transport/aio.py",
    "client/transport/connect.py",
    "client/transport/pool.py",
    "client/hooks.py",  # runs sends of batches between two hooks
    "client/spans.py",  # runs listeners that are coroutine functions
    "client/tracing.py",
    "client/sync/*consumer.py",  # what they hand to the loop in its thread
    "client/sync/runner.py",
    "client/sync/lite_pull.py",
    "proxy/*",
    "dashboard/*",
    "cmd/*",
    "testing/kit/*",
    "testing/chaos/*",
    "admin/commands/bench_steps.py",  # many sends in flight
)


def packages() -> list[str]:
    return sorted(path.parent.name for path in SRC.glob("*/__init__.py"))


def layers() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layered = [contract for contract in contracts if contract["type"] == "layers"]
    (found,) = [contract["layers"] for contract in layered if "containers" not in contract]
    return found


def of_package(package: str) -> list[Path]:
    return [path for path in python_files("src") if (SRC / package) in path.parents]


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_import_no_io(package: str) -> None:
    for path in of_package(package):
        assert not roots_imported(path) & ACTS, f"{name_of(path)} reaches for the world"


def test_store_imports_no_asyncio_sockets_or_logging() -> None:
    for path in of_package("store"):
        assert not roots_imported(path) & STORE_BANS, f"{name_of(path)} is not for the store"


def test_third_party_packages_are_imported_only_where_declared() -> None:
    for package in packages():
        for path in of_package(package):
            foreign = roots_imported(path) - sys.stdlib_module_names - {"tianzhou"}
            wrong = foreign - THIRD_PARTY[package]
            assert not wrong, f"{name_of(path)} imports {wrong}"


def test_async_code_is_only_in_the_listed_shells() -> None:
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for path in python_files("src"):
        place = place_of(path)
        if not any(fnmatch(place, shell) for shell in ASYNC_SHELLS):
            found = [node.lineno for node in nodes_of(path) if isinstance(node, waiting)]
            assert not found, f"{name_of(path)} is asynchronous in lines {found}"


def test_import_contract_lists_every_package() -> None:
    """A package that the contract does not name may import whatever it likes."""
    named = {word.strip(" ()") for layer in layers() for word in layer.split("|")}
    ours = {f"tianzhou.{package}" for package in packages()}
    assert ours - named == {"tianzhou.testing"}


def test_source_does_not_import_the_test_kit() -> None:
    """The contract has a list of packages, which a new one may be missing from."""
    for path in python_files("src"):
        if place_of(path).split("/")[0] != "testing":
            assert "tianzhou.testing" not in path.read_text(encoding="utf-8"), name_of(path)


def test_module_getattr_is_hidden_from_type_checkers() -> None:
    """Otherwise a type checker accepts `from package import name` for every name."""
    exposed = [
        name_of(path)
        for path in python_files("src")
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]
    assert exposed == []
