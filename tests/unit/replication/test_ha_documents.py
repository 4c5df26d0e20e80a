"""The states on the page about the stream are those of the code."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

from tianzhou.replication import ha_follower, ha_session

PAGE = Path(__file__).parents[3] / "docs/formats/ha_stream.md"


@pytest.mark.parametrize(
    ("heading", "allowed"),
    [("Master, one connection", ha_session.ALLOWED), ("Slave ([", ha_follower.ALLOWED)],
)
def test_the_page_has_the_table(heading: str, allowed: Mapping[Enum, frozenset[Enum]]) -> None:
    text = PAGE.read_text().partition(heading)[2].partition("\n\n|")[2]
    rows = re.findall(
        r"^\| ([A-Z]+) \| ([A-Z, ]*)\|$", "|" + text.partition("\n\n")[0], re.MULTILINE
    )
    said = {name: set(targets.replace(",", " ").split()) for name, targets in rows}
    assert said == {state.name: {to.name for to in targets} for state, targets in allowed.items()}
