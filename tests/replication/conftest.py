"""What several tests of Raft groups begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three members that serve, and a topic."""
    with Cluster(tmp_path) as made:
        made.start()
        made.create_topic()
        yield made
