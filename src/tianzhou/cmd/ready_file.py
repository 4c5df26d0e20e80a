"""The file that tells programs that a server serves, and where: the option, and writing it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click


def _checked(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Before anything starts: at the end everybody would wait for a file that can't come."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"{path.parent} is no directory; make it first")
    return path


option = click.option(
    "--ready-file", type=click.Path(dir_okay=False, path_type=Path), callback=_checked,
    help="Written once everything serves: JSON with the addresses.",
)  # fmt: skip


def write(path: Path, facts: Mapping[str, object]) -> None:
    """Whoever waits for the file finds it whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(facts) + "\n")
    temporary.replace(path)
