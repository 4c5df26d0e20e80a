"""The clusters of the benchmarks start; `make bench` itself takes too long for a test."""

from pathlib import Path

import pytest

from bench import cold_reading, raft
from bench.broker import broker, served
from bench.replication import MODES, Mode, look, pair
from tianzhou.testing.chaos import looking


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


@pytest.mark.slow
def test_bench_of_cold_reading_reads_at_the_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "COUNT", 20_000)
    with cold_reading.pair(str(tmp_path), slave=True) as pair:
        cold_reading.cool(pair.logs)
        assert cold_reading.read_all(pair.nameserver) == cold_reading.COUNT
        # One message of each queue, with the advice to read from the slave.
        assert int(looking.runtime(pair.master["broker"])["msgGetTotalTodayNow"]) <= 8
