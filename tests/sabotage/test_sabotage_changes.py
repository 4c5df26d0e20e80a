"""Testing the tests of administration: each planted bug must be caught by the test of its rule."""

import importlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from change_bugs import BUGS
from planting import Bug, planted

from tianzhou.replication.durability import Outcome
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.small_broker import SmallBroker

UNIT = Path(__file__).parents[1] / "unit" / "broker"
PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)
TESTS: Final[Mapping[str, tuple[str, str]]] = {
    "replica": ("test_gate", "test_replica_rejects_request_that_changes_shared_state"),
    "clients": ("test_gate", "test_replica_creates_no_group_or_topic_for_clients"),
    "commit": (
        "test_gate",
        "test_table_change_that_may_not_be_committed_does_not_report_success",
    ),
    "barrier": (
        "test_raft_tables",
        "test_commit_is_confirmed_when_the_record_is_read_even_without_a_change",
    ),
    "deletion": (
        "test_raft_tables",
        "test_deposed_leader_keeps_messages_of_an_uncommitted_topic_deletion",
    ),
    "followers": ("test_raft_tables", "test_follower_removes_the_queues_of_a_deleted_topic"),
    "reborn": (
        "test_raft_tables",
        "test_follower_keeps_messages_of_a_recreated_topic",
    ),
    "deposed": (
        "test_raft_tables",
        "test_topic_creation_not_committed_is_undone_by_the_next_leader",
    ),
    "reset": (
        "test_raft_tables",
        "test_reset_without_effect_at_the_leader_voids_the_follower_offset",
    ),
    "restart": (
        "test_raft_tables",
        "test_offset_committed_at_a_follower_survives_its_restart",
    ),
    "late": (
        "test_raft_tables",
        "test_late_offset_at_a_follower_does_not_move_the_group_back",
    ),
    "ahead": (
        "test_raft_tables",
        "test_offset_committed_at_a_follower_is_kept_until_it_is_committed",
    ),
    "signature": (
        "test_cluster_proof",
        "test_member_change_without_credentials_is_rejected_from_elsewhere",
    ),
}
"""The module below tests/unit/broker and its test, by rule."""


@pytest.fixture(autouse=True)
def unit_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of this folder importable by their unique names."""
    monkeypatch.setattr(sys, "path", [str(UNIT), *sys.path])


def play(rule: str) -> None:
    name, function = TESTS[rule]
    module: Any = importlib.import_module(name)
    test = getattr(module, function)
    with tempfile.TemporaryDirectory() as directory:
        match name, rule:
            case "test_raft_tables", _:
                leader = module.Member(Path(directory, "leader"), ManualClock())
                leader.lead()
                test(leader, *([] if rule == "barrier" else [Path(directory)]))
            case "test_cluster_proof", _:
                test("10.1.1.1")
            case _, "clients":
                test(with_known(module)[0])
            case _, "commit":
                test(*with_known(module), Outcome.NO_QUORUM)
            case _:
                for code in module.CHANGING:
                    test(*with_known(module), code)


def with_known(module: Any) -> tuple[SmallBroker, object]:
    broker = module.small_broker()
    return broker, module.prepared(broker)


@pytest.mark.parametrize("rule", TESTS)
def test_administration_checks_pass_without_a_planted_bug(rule: str) -> None:
    play(rule)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_administration_bug_is_caught(bug: Bug) -> None:
    with planted(bug), pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        play(bug.suite)
    assert not isinstance(caught.value.__cause__, PLANTED_BADLY), caught.value
