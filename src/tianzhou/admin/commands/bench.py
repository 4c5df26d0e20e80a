"""`tianzhou bench`: measure how fast a broker stores and delivers messages."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from tianzhou.admin.commands import output
from tianzhou.admin.commands.session import Session, asking
from tianzhou.admin.commands.termination import terminable
from tianzhou.base.errors import TianzhouError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.admin.commands.bench_steps import Load

COLUMNS: Final = {
    "step": "step",
    "messages": "messages",
    "per_second": "messages/s",
    "mb_per_second": "MB/s",
    "ms_p50": "p50 ms",
    "ms_p99": "p99 ms",
}


@click.command()
@click.option(
    "--count",
    default=20_000,
    show_default=True,
    type=click.IntRange(1, 10_000_000),
    metavar="COUNT",
    help="Send COUNT messages in each step.",
)
@click.option(
    "--size",
    default=1024,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    metavar="BYTES",
    help="Set the size of each body.",
)
@click.option(
    "--queues",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    metavar="COUNT",
    help="Create the test topic with COUNT queues.",
)
@click.option(
    "--in-flight",
    default=256,
    show_default=True,
    type=click.IntRange(1, 10_000),
    metavar="COUNT",
    help="Keep COUNT sends in flight.",
)
@click.option(
    "--ephemeral", is_flag=True, help="Start a broker in a temporary directory and measure it."
)
@asking
def bench(
    session: Session, *, count: int, size: int, queues: int, in_flight: int, ephemeral: bool
) -> None:
    """Measure sends and reads in a temporary topic, which is deleted afterwards.

    One process with one connection: the results describe this machine now, not the limit of the
    broker. Latencies are per request: a send, a batch, a pull.
    """
    from tianzhou.admin.commands.bench_steps import Load

    clock = click.get_current_context().find_root().obj
    load = Load(f"tianzhou-bench-{clock.now_ms()}", count, size, in_flight)
    if ephemeral:
        from tianzhou.admin.commands.own_broker import own_broker

        given = click.get_current_context().get_parameter_source("nameserver")
        if given is ParameterSource.COMMANDLINE:
            raise click.UsageError("--ephemeral starts its own broker; omit -n")
        with own_broker() as nameserver, Session(nameserver, as_json=session.as_json) as own:
            facts = _measure(own, load, queues)
    else:
        facts = _measure(session, load, queues)
    session.show(lambda: facts, _view)


def _measure(session: Session, load: "Load", queues: int) -> dict[str, Any]:
    import asyncio

    from tianzhou.admin.commands import bench_steps

    with terminable(), ExitStack() as ending:
        # Install the handlers before the topic is created: a signal may arrive before the response
        # does.
        ending.callback(session.admin.topics.delete, load.topic)
        try:
            session.admin.topics.create(load.topic, queues=queues)
        except TianzhouError:
            ending.pop_all()
            raise
        steps = asyncio.run(bench_steps.measure(session.nameserver, load))
    return {
        "nameserver": session.nameserver,
        "count": load.count,
        "size": load.size,
        "steps": [step.facts(load.size) for step in steps],
    }


def _view(facts: dict[str, Any]) -> "RenderableType":
    return output.listing(facts["steps"], COLUMNS, "no results")
