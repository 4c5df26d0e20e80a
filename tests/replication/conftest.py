"""Fixtures for tests of Raft groups."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three running members, and a topic."""
    with Cluster(tmp_path) as made:
        made.start()
        made.create_topic()
        yield made
