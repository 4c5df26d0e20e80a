"""`MessageStore` satisfies the narrow protocols that the rest of the product depends on."""

import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from small_store import open_store

from tianzhou.store.protocols import LogAppender, QueueReader, ReplicaLog
from tianzhou.store.store import MessageStore


@pytest.fixture
def store(tmp_path: Path) -> Generator[MessageStore]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def members(protocol: type[Any]) -> list[str]:
    own = {**vars(protocol), **protocol.__annotations__}
    return sorted(name for name in own if not name.startswith("_"))


def accepts(reader: QueueReader, appender: LogAppender, replica: ReplicaLog) -> None:
    """pyright compares the signatures where this is called."""
    assert reader is appender is replica


def test_store_satisfies_every_protocol(store: MessageStore) -> None:
    accepts(store, store, store)


@pytest.mark.parametrize("protocol", [QueueReader, LogAppender, ReplicaLog])
def test_store_has_every_member_of_the_protocol(store: MessageStore, protocol: type[Any]) -> None:
    assert [name for name in members(protocol) if not hasattr(store, name)] == []


@pytest.mark.parametrize("protocol", [QueueReader, LogAppender, ReplicaLog])
def test_parameters_of_the_store_match_the_protocol(protocol: type[Any]) -> None:
    for name, member in vars(protocol).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            expected = inspect.signature(member).parameters
            actual = inspect.signature(getattr(MessageStore, name)).parameters
            assert [*actual] == [*expected], name


@pytest.mark.parametrize("protocol", [QueueReader, LogAppender, ReplicaLog])
def test_store_protocols_have_at_most_twelve_members(protocol: type[Any]) -> None:
    assert len(members(protocol)) <= 12
