"""The states on the page about the stream are those of the code."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

from tianzhou.replication import ha_session

PAGE = Path(__file__).parents[3] / "docs/formats/ha_stream.md"


@pytest.mark.parametrize(
    ("heading", "allowed"),
    [("Master, one connection", ha_session.MASTER_ALLOWED), ("Slave (", ha_session.SLAVE_ALLOWED)],
)
def test_ha_page_has_the_transition_table(
    heading: str, allowed: Mapping[Enum, frozenset[Enum]]
) -> None:
    text = PAGE.read_text().partition(heading)[2].partition("```\n")[2].partition("```")[0]
    said = {first: set(rest) for first, *rest in map(str.split, text.splitlines())}
    assert said == {state.name: {to.name for to in targets} for state, targets in allowed.items()}
