"""The page about chaos names what there is."""

import re
from pathlib import Path

from tianzhou.testing.chaos.checkers import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")


def test_every_rule_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [rule.__name__ for rule in RULES]
