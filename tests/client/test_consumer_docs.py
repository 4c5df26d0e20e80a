"""The pages about consumers: every example runs, and the tables are complete, in both languages."""

import asyncio
import dataclasses
import enum
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from docs.pages import NAMESERVER, Page
from tianzhou.client import ConsumerOptions, Message, Producer
from tianzhou.testing import RunningBroker

PAGE = Page("docs/consumers.md")
EXAMPLES = PAGE.blocks("python")
RUN = "asyncio.run(main())"
COUNT = 8


async def fill(mq: RunningBroker) -> None:
    async with Producer("fillers", nameserver=mq.nameserver) as producer:
        for number in range(COUNT):
            await producer.send(Message("orders", b"%d" % number, tags="fruit", keys="T1"))
            properties = {"amount": "101", "region": "north"}
            await producer.send(Message("payments", b"%d" % number, properties=properties))


async def play(mq: RunningBroker, main: Coroutine[Any, Any, None], group: str) -> None:
    """Until it ends, or goes on after it has consumed everything."""
    playing = asyncio.ensure_future(main)

    def is_over() -> bool:
        has_all = mq.committed(group, "orders") and mq.lag(group, "orders") == 0
        return playing.done() or bool(has_all)

    await mq.until(is_over, within_s=20, what=f"{group} has consumed everything")
    playing.cancel()
    await asyncio.wait([playing])
    if not playing.cancelled():
        playing.result()  # raises what it raised


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_consumer_page_example_runs(
    mq: RunningBroker, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic in ("orders", "payments"):
        mq.create_topic(topic)
    asyncio.run(fill(mq))
    code = EXAMPLES[number].replace(NAMESERVER, mq.nameserver)
    group = re.search(r'Consumer\(\s*"([\w-]+)"', code)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code.replace(RUN, ""), f"example {number}", "exec"), names)
    if RUN in code:
        assert group is not None
        asyncio.run(play(mq, names["main"](), group[1]))
    elif group is not None:
        assert sum(mq.committed(group[1], "orders").values()) >= 1


def shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return str(getattr(value, "__name__", value))
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else str(value)


@pytest.mark.parametrize("page", [PAGE, PAGE.twin], ids=["english", "chinese"])
def test_consumer_page_lists_every_option(page: Page) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ", page.text, re.MULTILINE)
    told = {name: default.strip() for name, default in rows}
    options = ConsumerOptions()
    for field in dataclasses.fields(options):
        assert told.pop(field.name) == shown(getattr(options, field.name)), field.name
    assert not told
