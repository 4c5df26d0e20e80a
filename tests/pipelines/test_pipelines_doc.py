"""docs/pipelines.md: its file is valid, its commands exist, its Python runs, in both languages."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pipelines.conftest import Place
from tianzhou.cmd.main import cli
from tianzhou.spark.pipelines import builtin
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_file import parse

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / name).read_text("utf-8") for name in ("pipelines.md", "pipelines.zh-CN.md")}
ENGLISH, CHINESE = PAGES.values()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_both_languages_show_the_same() -> None:
    for language in ("sh", "yaml", "python"):
        assert blocks(ENGLISH, language) == blocks(CHINESE, language)
    cells = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
    assert cells.findall(ENGLISH) == cells.findall(CHINESE)
    heading = re.compile(r"^#+ ", re.MULTILINE)
    assert heading.findall(ENGLISH) == heading.findall(CHINESE)


def test_the_file_is_valid_and_every_key_is_explained() -> None:
    (text,) = blocks(ENGLISH, "yaml")
    assert parse(text, "pipelines.md").name == "city-amounts"
    for key in (field.encode_name for field in _fields(Pipeline)):
        assert f"| `{key}` |" in ENGLISH or key == "description"
    for name in builtin.NAMES:
        assert f"| `{name}` |" in ENGLISH


def _fields(struct: type[Any]) -> Iterator[Any]:
    import msgspec

    return iter(msgspec.structs.fields(struct))


@pytest.mark.parametrize("line", "".join(blocks(ENGLISH, "sh")).splitlines())
def test_commands_take_what_is_written(line: str) -> None:
    """Every word is a command, an option or an argument that click accepts."""
    program, *words = shlex.split(line)
    if program == "spark-submit":
        words = words[words.index("submit.py") + 1 :]
    else:
        assert program == "tianzhou"
    context = click.Context(cli, info_name="tianzhou")
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found
    made = command.make_context(command.name, words)
    assert made.params


def test_the_query_runs(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(ENGLISH, "python")[0]
    topic = place.topic("orders")
    place.send(topic, ["one", "two"], tags="paid")
    place.run(place.pipeline("name: doc\nsinks: [{type: parquet, path: archive}]\n", topic))
    code = code.replace("127.0.0.1:9876", place.nameserver).replace(
        "lake/archive", str(tmp_path / "archive")
    )
    exec(code.replace("FROM orders", f"FROM `{topic}`"), {"spark": place.spark})
    assert "|paid|       2|" in capsys.readouterr().out
