"""A server process for each test process, and the C++ client's interpreter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.cpp_client import Clients, clients_of, installed
from clients.server_process import ServerProcess


@pytest.fixture(scope="session")
def cpp_python() -> Path:
    return installed()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared by all tests: each uses its own topics and groups."""
    running = server_process.up(tmp_path_factory.mktemp("up"), "--ephemeral")
    yield running
    running.end()


@pytest.fixture
def clients(cpp_python: Path, server: ServerProcess, tmp_path: Path) -> Iterator[Clients]:
    made = clients_of(server, cpp_python, tmp_path)
    yield made
    made.end()
