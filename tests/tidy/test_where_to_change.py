"""The rows of "Where to make a change" in CONTRIBUTING.md lead to files that exist."""

import re

from doc_tables import only_table, read
from sources import ROOT, SRC

ROWS = only_table(read(ROOT / "CONTRIBUTING.md"), "Where to make a change")
FUTURE = {"broker/fetch/pop.py"}
"""Files in code type that do not exist yet."""


def test_where_to_change_has_fifteen_rows() -> None:
    assert len(ROWS) == 15
    assert all("](" in row["files"] for row in ROWS)


def test_where_to_change_files_exist() -> None:
    for row in ROWS:
        for name in re.findall(r"`([\w/]+/[\w.]+\.\w+)`", row["files"]):
            exists = (SRC / name).exists() or (ROOT / name).exists()
            assert exists or name in FUTURE, f"{row['change']}: {name} does not exist"


def test_where_to_change_future_files_do_not_exist_yet() -> None:
    assert not [name for name in FUTURE if (SRC / name).exists()]


def test_where_to_change_links_show_their_target() -> None:
    for row in ROWS:
        for shown, target in re.findall(r"\[([\w./]+)\]\(([^)]+)\)", row["files"]):
            assert target.endswith(shown), f"{row['change']}: {shown} leads to {target}"
