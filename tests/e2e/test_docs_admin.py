"""docs/admin.md, in both languages: its examples work, its table is complete."""

import re
from pathlib import Path

from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker

DOCS = Path(__file__).parents[2] / "docs"
ENGLISH, CHINESE = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("admin.md", "admin.zh-CN.md")
)
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| (`.+`) \| (`.+`) \|$", re.MULTILINE)
ADDRESS = "127.0.0.1:9876"


def test_the_examples_work(mq: RunningBroker) -> None:
    """One after the other, on one broker."""
    examples = EXAMPLE.findall(ENGLISH)
    assert len(examples) == 7
    for number, code in enumerate(examples, start=1):
        assert ADDRESS in code
        here = code.replace(ADDRESS, mq.nameserver)
        exec(compile(here, f"docs/admin.md example {number}", "exec"), {})


def test_both_languages_show_the_same() -> None:
    headings = re.compile(r"^(#+) ", re.MULTILINE)
    assert EXAMPLE.findall(ENGLISH) == EXAMPLE.findall(CHINESE)
    assert headings.findall(ENGLISH) == headings.findall(CHINESE)
    assert ROW.findall(ENGLISH) == ROW.findall(CHINESE)
    assert "](admin.zh-CN.md)" in ENGLISH
    assert "](admin.md)" in CHINESE


def test_the_table_is_complete(mq: RunningBroker) -> None:
    rows: list[tuple[str, str]] = ROW.findall(ENGLISH)
    listed = {noun.strip("`"): set(re.findall(r"\w+", names)) for noun, names in rows}
    with Admin(nameserver=mq.nameserver) as admin:
        nouns: dict[str, object] = {n: v for n, v in vars(admin).items() if not n.startswith("_")}
    assert listed == {name: set(vars(noun)) for name, noun in nouns.items()}
