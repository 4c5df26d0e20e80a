"""`tianzhou metrics`: what belongs to the numbers that brokers print at /metrics."""

from importlib.resources import files

import click


@click.group()
def metrics() -> None:
    """Numbers for Prometheus, and a board for Grafana."""


@metrics.command()
def board() -> None:
    """Print a board for Grafana: save it, and import it there.

    Brokers print the numbers at /metrics of their HTTP port; docs/metrics.md says what they mean.
    """
    text = files("tianzhou.admin").joinpath("grafana/tianzhou.json").read_text(encoding="utf-8")
    click.echo(text, nl=False)
