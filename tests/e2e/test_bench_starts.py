"""The clusters of the benchmarks start; `make bench` itself takes too long for a test."""

import pytest

from bench import raft
from bench.broker import broker, served
from bench.replication import MODES, Mode, look, pair


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_bench_pair_has_a_slave_that_follows(mode: Mode) -> None:
    with pair(mode) as master:
        assert [slave.broker_id for slave in look(master).slaves] == [1]


@pytest.mark.slow
def test_bench_raft_group_has_a_leader() -> None:
    up = broker()
    with served([*up[:2], "--replicas", "3", *up[2:]]) as three:
        assert raft.leader(three)["broker"]
