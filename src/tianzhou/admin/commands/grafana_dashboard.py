"""`tianzhou grafana-dashboard`: a Grafana dashboard for the metrics of brokers."""

from importlib.resources import files

import click


@click.command("grafana-dashboard")
def grafana_dashboard() -> None:
    """Print a Grafana dashboard as JSON, to save and import into Grafana.

    Brokers serve the metrics at /metrics of their HTTP port; docs/metrics.md explains each one.
    """
    text = files("tianzhou.admin").joinpath("grafana/tianzhou.json").read_text(encoding="utf-8")
    click.echo(text, nl=False)
