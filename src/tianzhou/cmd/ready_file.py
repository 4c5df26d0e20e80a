"""The ready file, which tells programs that a server serves, and at which addresses."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click


def _checked(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Check before anything starts: otherwise programs would wait for a file that never comes."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"directory {path.parent} does not exist; create it first")
    return path


option = click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_checked,
    metavar="FILE",
    help="Write addresses as JSON to FILE once all servers are ready.",
)


def write(path: Path, facts: Mapping[str, object]) -> None:
    """Write the file atomically, so that readers never see a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(facts) + "\n")
    temporary.replace(path)
