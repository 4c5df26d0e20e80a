"""Each rule of the Raft paper, and each of ours, as a scenario with its expected output.

`TIANZHOU_REWRITE=1 pytest tests/raft/test_raft_scenarios.py` writes the actual output into the
files; read the difference before you commit it.
"""

import os
from pathlib import Path

import pytest
from script import rewritten

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_raft_scenario_has_the_expected_output(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = rewritten(text)
    if os.environ.get("TIANZHOU_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == text


def test_every_raft_scenario_starts_with_a_comment() -> None:
    assert len(SCENARIOS) >= 20
    for path in SCENARIOS:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


def test_raft_scenario_with_another_output_fails() -> None:
    text = SCENARIOS[0].read_text(encoding="utf-8")
    assert "\n----\n" in text
    assert rewritten(text.replace("\n----\n", "\n----\nx", 1)) == text
