"""The pages about producers: every example runs, and the tables are complete, in both languages."""

import asyncio
import dataclasses
import enum
import re
from collections.abc import Coroutine
from typing import Any

import pytest

from docs.fragments import is_program, whole
from docs.pages import NAMESERVER, Page
from tianzhou.client import ClientOptions, ProducerOptions
from tianzhou.testing import RunningBroker

PAGE = Page("docs/client.md")
EXAMPLES = PAGE.blocks("python")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_producer_page_example_runs(
    mq: RunningBroker, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = EXAMPLES[number]
    names: dict[str, Any] = {"__name__": "example"}
    here = whole(code).replace(NAMESERVER, mq.nameserver)
    exec(compile(here, f"example {number}", "exec"), names)
    if not is_program(code):
        main: Coroutine[Any, Any, None] = names["main"]()
        asyncio.run(main)
    assert "no sense" not in capsys.readouterr().out


def shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else str(value)


@pytest.mark.parametrize("page", [PAGE, PAGE.twin], ids=["english", "chinese"])
def test_producer_page_lists_every_option(page: Page) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ", page.text, re.MULTILINE)
    told = {name: default.strip() for name, default in rows}
    for options in (ProducerOptions(), ClientOptions()):
        for field in dataclasses.fields(options):
            assert told.pop(field.name) == shown(getattr(options, field.name)), field.name
    assert not told
