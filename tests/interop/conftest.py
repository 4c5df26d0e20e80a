"""These tests need Maven, a JDK and the network once, so they run only by `make interop`."""

import os
from pathlib import Path

import pytest
from java_probe import VERSIONS, JavaStore, build

collect_ignore_glob = [] if os.environ.get("TIANZHOU_INTEROP") else ["test_*.py"]


@pytest.fixture(params=VERSIONS, scope="session")
def java_version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def java_classpath(java_version: str) -> str:
    """Skips when there is no Java to compare with, and says what is missing."""
    return build(java_version)


@pytest.fixture
def java(java_classpath: str, tmp_path: Path) -> JavaStore:
    return JavaStore(java_classpath, tmp_path)
