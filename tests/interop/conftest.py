"""These tests need Maven, a JDK and, once, the network, so only `make interop` runs them."""

import os
from collections.abc import Iterator
from pathlib import Path

import client_build
import client_probe
import java_servers
import pytest
from client_probe import ClientProbe
from java_probe import VERSIONS, JavaStore, build

collect_ignore_glob = [] if os.environ.get("TIANZHOU_INTEROP") else ["test_*.py"]


@pytest.fixture(params=VERSIONS, scope="session")
def java_version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def java_classpath(java_version: str) -> str:
    """Skips if there is no Java, and says what is missing."""
    return build(java_version)


@pytest.fixture
def java(java_classpath: str, tmp_path: Path) -> JavaStore:
    return JavaStore(java_classpath, tmp_path)


@pytest.fixture(scope="module", params=[java_servers.FIVE, java_servers.FOUR])
def version(request: pytest.FixtureRequest) -> str:
    """The version of the RocketMQ servers that our clients use."""
    return request.param


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rocketmq")


@pytest.fixture(scope="module")
def nameserver(version: str, home: Path) -> Iterator[str]:
    """The address of RocketMQ's NameServer, which has a broker."""
    with java_servers.rocketmq(version, home / version) as address:
        yield address


@pytest.fixture(scope="module")
def probe(version: str, home: Path, nameserver: str) -> Iterator[ClientProbe]:
    """RocketMQ's own client beside ours."""
    classpath = client_build.build(client_build.FIVE)
    with client_probe.running(classpath, nameserver, home / f"probe-{version}") as running:
        yield running
