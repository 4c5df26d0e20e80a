"""The reference of the command line, as the commands themselves know it.

    .venv/bin/python tests/cli/command_reference.py

writes it into docs/command-line.md and its Chinese twin, behind the marker.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from tianzhou.cmd.commands import cli

DOCS: Final = Path(__file__).parents[2] / "docs"
MARKER: Final = "<!-- written by tests/cli/command_reference.py -->\n"
PAGES: Final = {
    "command-line.md": ("command", "what it does", "options"),
    "command-line.zh-CN.md": ("命令", "说明（原文）", "选项"),
}


class Row(NamedTuple):
    command: str
    about: str
    options: str


def rows() -> list[Row]:
    return list(_rows(cli, click.Context(cli, info_name="tianzhou"), "tianzhou"))


def _rows(command: click.Command, ctx: click.Context, name: str) -> Iterator[Row]:
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield _row(command, name)
        for verb in command.list_commands(ctx):
            found = command.get_command(ctx, verb)
            assert found is not None, f"{name} lists {verb} and does not have it"
            yield from _rows(found, click.Context(found, parent=ctx), f"{name} {verb}")
    else:
        yield _row(command, name)


def _row(command: click.Command, name: str) -> Row:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    words = [
        f"[{p.human_readable_name}]" if not p.required else p.human_readable_name for p in arguments
    ]
    options = [p for p in command.params if isinstance(p, click.Option)]
    spelled = [" ".join((*p.opts, *p.secondary_opts)) for p in options]
    about = command.get_short_help_str(200)
    return Row(f"`{' '.join((name, *words))}`", about, " ".join(f"`{one}`" for one in spelled))


def table(titles: tuple[str, str, str]) -> str:
    head = f"| {' | '.join(titles)} |\n| --- | --- | --- |\n"
    return head + "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write() -> None:
    for name, titles in PAGES.items():
        path = DOCS / name
        before, marker, _ = path.read_text(encoding="utf-8").partition(MARKER)
        assert marker, f"{name} has no marker"
        path.write_text(before + MARKER + "\n" + table(titles), encoding="utf-8")


if __name__ == "__main__":
    write()
