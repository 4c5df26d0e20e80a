"""The pages about consumers: every example runs, and the tables are complete, in both languages."""

import asyncio
import dataclasses
import enum
import json
import re
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tianzhou.client import ConsumerOptions, Message, Producer
from tianzhou.testing import RunningBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENGLISH, CHINESE = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("consumers.md", "consumers.zh-CN.md")
)
ADDRESS = "127.0.0.1:9876"
RUN = "asyncio.run(main())"
COUNT = 8


def examples(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


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


@pytest.mark.parametrize("number", range(len(examples(ENGLISH))))
def test_the_example_runs(
    mq: RunningBroker, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic in ("orders", "payments"):
        mq.create_topic(topic)
    asyncio.run(fill(mq))
    code = examples(ENGLISH)[number].replace(ADDRESS, mq.nameserver)
    group = re.search(r'Consumer\(\s*"([\w-]+)"', code)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code.replace(RUN, ""), f"example {number}", "exec"), names)
    if RUN in code:
        assert group is not None
        asyncio.run(play(mq, names["main"](), group[1]))
    elif group is not None:
        assert sum(mq.committed(group[1], "orders").values()) >= 1


def test_the_examples_are_typed(tmp_path: Path) -> None:
    """As a user has them who checks strictly."""
    for number, code in enumerate(examples(ENGLISH)):
        (tmp_path / f"example_{number}.py").write_text(code, encoding="utf-8")
    rules = {
        "typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["."],
        "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name,
    }  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    pyright = Path(sys.executable).with_name("pyright")
    done = subprocess.run(
        [pyright, "-p", str(tmp_path)], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_both_languages_have_the_same_examples() -> None:
    assert examples(ENGLISH) == examples(CHINESE)
    assert len(examples(ENGLISH)) >= 14
    levels = [re.findall(r"^#+", text, re.MULTILINE) for text in (ENGLISH, CHINESE)]
    assert levels[0] == levels[1]


def shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return str(getattr(value, "__name__", value))
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else str(value)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_the_table_of_options_is_complete(text: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ", text, re.MULTILINE)
    told = {name: default.strip() for name, default in rows}
    options = ConsumerOptions()
    for field in dataclasses.fields(options):
        assert told.pop(field.name) == shown(getattr(options, field.name)), field.name
    assert not told
