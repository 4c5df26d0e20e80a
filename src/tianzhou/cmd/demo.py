"""`tianzhou demo`: from a producer to SQL, in one process and about a minute."""

import logging
import shutil
import tempfile
from importlib import import_module
from pathlib import Path

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.session import Teller, telling


@click.command()
@click.option(
    "--master",
    default="local[2]",
    show_default=True,
    metavar="URL",
    help="Run Spark on this master.",
)
@click.option(
    "--seed", default=7, show_default=True, metavar="NUMBER", help="Generate different traffic."
)
@telling
def demo(teller: Teller, master: str, seed: int) -> None:
    """Run a cluster, producers, consumers, pipelines and SQL, and check every result.

    Exits with code 1 if a result is wrong.
    """
    # Imported here because `--help` needs none of it. Spark comes first: if it is missing, the
    # command must fail before it starts a cluster.
    import_module("tianzhou.spark.sessions")
    from tianzhou.cmd import demo_job, logs
    from tianzhou.cmd.demo_view import Show

    # Warnings of the broker about a busy machine would hide the demo; errors are shown.
    logs.set_up(as_json=False, level=logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-demo-"))
    # With --json the steps go to the error stream.
    show = Show(output.console(err=True)) if teller.as_json else Show()
    try:
        amounts = demo_job.run(directory, master, seed, show)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if teller.as_json:
        output.echo_json(show.facts())
    else:
        show.summary(amounts)
    if not show.is_right:
        raise SystemExit(1)
