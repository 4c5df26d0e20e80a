"""docs/admin.md, in both languages: its examples work, its table is complete."""

import re
from typing import get_type_hints

from docs.pages import NAMESERVER, Page
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker

PAGE = Page("docs/admin.md")
ROW = re.compile(r"^\| (`.+`) \| (`.+`) \|$", re.MULTILINE)


def test_examples_of_the_admin_page_work(mq: RunningBroker) -> None:
    """The examples run one after the other, on one broker."""
    examples = PAGE.blocks("python")
    assert len(examples) == 8
    for number, code in enumerate(examples, start=1):
        assert NAMESERVER in code
        here = code.replace(NAMESERVER, mq.nameserver)
        exec(compile(here, f"docs/admin.md example {number}", "exec"), {})


def test_table_of_the_admin_page_is_complete(mq: RunningBroker) -> None:
    rows: list[tuple[str, str]] = ROW.findall(PAGE.text)
    listed = {noun.strip("`"): set(re.findall(r"\w+", names)) for noun, names in rows}
    with Admin(nameserver=mq.nameserver) as admin:
        names = [name for name in get_type_hints(Admin) if not name.startswith("_")]
        nouns: dict[str, object] = {name: getattr(admin, name) for name in names}
    public = {
        name: {method for method in dir(noun) if not method.startswith("_")}
        for name, noun in nouns.items()
    }
    assert listed == public
