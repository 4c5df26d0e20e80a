"""The pages about producers: every example runs, and the tables are complete, in both languages."""

import asyncio
import dataclasses
import enum
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tianzhou.client import ClientOptions, ProducerOptions
from tianzhou.testing import RunningBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENGLISH, CHINESE = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("client.md", "client.zh-CN.md")
)
ADDRESS = "127.0.0.1:9876"
FRAGMENT = """
import asyncio
from tianzhou.client import Message, Producer

async def main() -> None:
    async with Producer("fragments", nameserver="{address}") as producer:
{body}
"""


def examples(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def is_program(code: str) -> bool:
    return "asyncio.run(" in code or "client.sync" in code


def whole(code: str, address: str = ADDRESS) -> str:
    """The example as a program of its own, with a function `main` if it is a fragment."""
    if is_program(code):
        return code.replace(ADDRESS, address)
    fragment = code.replace(ADDRESS, address)
    return FRAGMENT.format(address=address, body=textwrap.indent(fragment, " " * 8))


@pytest.mark.parametrize("number", range(len(examples(ENGLISH))))
def test_the_example_runs(
    mq: RunningBroker, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = examples(ENGLISH)[number]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(whole(code, mq.nameserver), f"example {number}", "exec"), names)
    if not is_program(code):
        main: Coroutine[Any, Any, None] = names["main"]()
        asyncio.run(main)
    assert "no sense" not in capsys.readouterr().out


def test_the_examples_are_typed(tmp_path: Path) -> None:
    """As a user has them who checks strictly."""
    for number, code in enumerate(examples(ENGLISH)):
        (tmp_path / f"example_{number}.py").write_text(whole(code), encoding="utf-8")
    # What fragments leave unused, their readers use.
    rules = {
        "typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["."],
        "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name,
        "reportUnusedVariable": False, "reportUnusedImport": False,
    }  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    pyright = Path(sys.executable).with_name("pyright")
    done = subprocess.run(
        [pyright, "-p", str(tmp_path)], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_both_languages_have_the_same_examples() -> None:
    assert examples(ENGLISH) == examples(CHINESE)
    assert len(examples(ENGLISH)) >= 12
    # As many headings, in the same order of levels.
    levels = [re.findall(r"^#+", text, re.MULTILINE) for text in (ENGLISH, CHINESE)]
    assert levels[0] == levels[1]


def shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return str(value)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_the_tables_of_options_are_complete(text: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ", text, re.MULTILINE)
    told = {name: default.strip() for name, default in rows}
    for options in (ProducerOptions(), ClientOptions()):
        for field in dataclasses.fields(options):
            assert told.pop(field.name) == shown(getattr(options, field.name)), field.name
    assert not told
