"""docs/pipelines.md: its file is valid, its commands exist, its Python runs, in both languages."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from docs.pages import NAMESERVER, Page
from pipelines.conftest import Place
from tianzhou.cmd.commands import cli
from tianzhou.spark.pipelines import builtin
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_file import parse

PAGE = Page("docs/pipelines.md")


def test_pipelines_page_file_is_valid_and_explains_every_key() -> None:
    (text,) = PAGE.blocks("yaml")
    assert parse(text, "pipelines.md").name == "city-amounts"
    for key in (field.encode_name for field in _fields(Pipeline)):
        assert f"| `{key}` |" in PAGE.text or key == "description"
    for name in builtin.NAMES:
        assert f"| `{name}` |" in PAGE.text


def _fields(struct: type[Any]) -> Iterator[Any]:
    import msgspec

    return iter(msgspec.structs.fields(struct))


@pytest.mark.parametrize("line", "".join(PAGE.blocks("sh")).splitlines())
def test_pipelines_page_commands_are_accepted(line: str) -> None:
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


def test_pipelines_page_query_runs(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = PAGE.blocks("python")[0]
    topic = place.topic("orders")
    place.send(topic, ["one", "two"], tags="paid")
    place.run(place.pipeline("name: doc\nsinks: [{type: parquet, path: archive}]\n", topic))
    code = code.replace(NAMESERVER, place.nameserver).replace(
        "lake/archive", str(tmp_path / "archive")
    )
    exec(code.replace("FROM orders", f"FROM `{topic}`"), {"spark": place.spark})
    assert "|paid|       2|" in capsys.readouterr().out
