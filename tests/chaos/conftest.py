"""The interpreter of the C++ client."""

from pathlib import Path

import pytest

from clients.cpp_client import installed


@pytest.fixture(scope="session")
def cpp_python() -> Path:
    return installed()
