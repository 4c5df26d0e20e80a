"""`tianzhou demo`: the main job, from a producer to SQL, in one process and about a minute."""

import logging
import shutil
import tempfile
from importlib import import_module
from pathlib import Path

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.session import Teller, telling


@click.command()
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option("--seed", default=7, show_default=True, help="Another traffic.")
@telling
def demo(teller: Teller, master: str, seed: int) -> None:
    """Run the main job: cluster, producers, consumers, pipelines, SQL; exit code 1 if a figure is
    wrong."""
    # Imported here because `--help` needs none of it. Spark comes first: if it is missing, the
    # command must fail before it starts a cluster.
    import_module("tianzhou.spark.sessions")
    from tianzhou.cmd import demo_job, logs
    from tianzhou.cmd.demo_view import Show

    # What the broker in this process has to say of a busy machine is not the show; errors are.
    logs.set_up(as_json=False, level=logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-demo-"))
    # For programs the steps go where people may still look.
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
