"""docs/admin.md, in both languages: its examples work, its table is complete."""

import re

from docs.pages import NAMESERVER, Page
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker

PAGE = Page("docs/admin.md")
ROW = re.compile(r"^\| (`.+`) \| (`.+`) \|$", re.MULTILINE)


def test_the_examples_work(mq: RunningBroker) -> None:
    """One after the other, on one broker."""
    examples = PAGE.blocks("python")
    assert len(examples) == 7
    for number, code in enumerate(examples, start=1):
        assert NAMESERVER in code
        here = code.replace(NAMESERVER, mq.nameserver)
        exec(compile(here, f"docs/admin.md example {number}", "exec"), {})


def test_the_table_is_complete(mq: RunningBroker) -> None:
    rows: list[tuple[str, str]] = ROW.findall(PAGE.text)
    listed = {noun.strip("`"): set(re.findall(r"\w+", names)) for noun, names in rows}
    with Admin(nameserver=mq.nameserver) as admin:
        nouns: dict[str, object] = {
            n: v for n, v in vars(admin).items() if not n.startswith("_") and not callable(v)
        }
    assert listed == {name: set(vars(noun)) for name, noun in nouns.items()}
