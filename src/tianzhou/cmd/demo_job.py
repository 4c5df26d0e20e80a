"""The demo, step by step: a cluster, orders and payments, a consumer group in Python, pipelines on
Spark, and SQL over a topic and its archive. Every result is checked against the input."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tianzhou.admin.commands.failures import Failure
from tianzhou.admin.commands.spark_session import SHORT, session
from tianzhou.cmd.demo_clients import GROUP, Group, send_all
from tianzhou.cmd.demo_cluster import DemoCluster
from tianzhou.cmd.demo_traffic import (
    BROKEN,
    LATE_COUNT,
    ORDER_COUNT,
    ORDERS,
    PAYMENT_COUNT,
    PAYMENTS,
    STATES,
    Sums,
    Traffic,
)
from tianzhou.cmd.demo_view import Show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tianzhou.spark.pipelines.running import PipelineRun

WAIT_S: Final = 120.0
LAST_ORDERS: Final = 250
"""Orders sent after the archive has stopped, which only the broker has."""


def run(directory: Path, master: str, seed: int, show: Show) -> Sums:
    traffic = Traffic(base_s=int(time.time()) // 60 * 60, seed=seed)
    with contextlib.ExitStack() as stack:
        with show.step("Start a NameServer and a Broker in this process"):
            cluster = stack.enter_context(DemoCluster(directory / "store"))
            cluster.create_topics(ORDERS, PAYMENTS)
        group = Group()
        stop = stack.enter_context(_consuming(cluster, group))
        first = _half(traffic, 0)
        sending = cluster.begin(send_all(cluster.nameserver, first))
        with show.step("Send and consume orders and payments while Spark starts"):
            spark = stack.enter_context(
                session("tianzhou-demo", master=master, config=SHORT, log=directory / "spark.log")
            )
            stored = sending.result(WAIT_S)
        stored += _pipelines(spark, cluster, directory, traffic, show=show)
        show.check("stored by the broker", wanted=sum(traffic.sent.values()), found=stored)
        with show.step("Wait until the consumer group has everything"):
            _until(lambda: group.received >= traffic.sent[ORDERS], f"group {GROUP}")
            stop()
        _check_group(group, traffic, show)
        _query(spark, cluster, directory, traffic, show=show)
        return _check_amounts(spark, directory, traffic, show)


def _half(traffic: Traffic, half: int) -> Iterator[Any]:
    """Orders and payments of the first or second half."""
    orders, payments = ORDER_COUNT // 2, PAYMENT_COUNT // 2
    return chain(
        traffic.orders(1 + half * orders, orders), traffic.in_time(half * payments, payments)
    )


@contextlib.contextmanager
def _consuming(cluster: DemoCluster, group: Group) -> Generator[Callable[[], None]]:
    """Run a consumer group until the yielded function is called, or the block ends."""

    async def made() -> asyncio.Event:
        return asyncio.Event()

    event = cluster.run(made())

    async def stop() -> None:
        event.set()

    work = cluster.begin(group.consume(cluster.nameserver, event))
    try:
        yield lambda: cluster.run(stop())
    finally:
        cluster.run(stop())
        work.result(WAIT_S)


def _pipelines(
    spark: "SparkSession", cluster: DemoCluster, directory: Path, traffic: Traffic, *, show: Show
) -> int:
    """Archive and aggregate while the second half is sent; return the number of stored messages."""
    archive = _made(spark, "archive", cluster, directory, topic=f"{ORDERS},{PAYMENTS}")
    aggregate = _made(spark, "aggregate", cluster, directory, topic=PAYMENTS)
    with contextlib.ExitStack() as stack:
        with show.step("Run two pipelines: archive, and amounts per city and minute"):
            for run in (archive, aggregate):
                stack.callback(run.stop)
                run.start()
            _until(lambda: _poll(archive) and _poll(aggregate), "the first micro-batches")
        with show.step("Send the second half, with late and invalid messages"):
            # Messages are late only after a micro-batch has advanced the watermark.
            rest = chain(_half(traffic, 1), traffic.late(), traffic.broken())
            stored = cluster.run(send_all(cluster.nameserver, chain(rest, [traffic.closing()])))
            _until(
                lambda: _has(directory, "archive", sum(traffic.sent.values()), archive),
                "the archive",
            )
            _until(
                lambda: _has(directory, "city_amounts", len(traffic.payments), aggregate),
                "the table of amounts",
            )
            _until(lambda: _has(directory, "broken", len(BROKEN), aggregate), "the quarantine")
    return stored


def _made(
    spark: "SparkSession", name: str, cluster: DemoCluster, directory: Path, *, topic: str
) -> "PipelineRun":
    from tianzhou.spark.pipelines.builtin import template
    from tianzhou.spark.pipelines.pipeline_file import parse
    from tianzhou.spark.pipelines.running import PipelineRun

    given = {
        "source.nameserver": cluster.nameserver,
        "source.topic": topic,
        "trigger": {"interval": "500ms"},
    }
    if name == "aggregate":
        given["decode.quarantine"] = "broken"
    return PipelineRun(spark, parse(template(name), f"<{name}>", given=given), directory)


def _poll(run: "PipelineRun") -> bool:
    run.poll()
    return any(sample.query == "sink-0" for sample in run.samples)


def _has(directory: Path, table: str, rows: int, run: "PipelineRun") -> bool:
    from tianzhou.spark.tables.table import Table

    run.poll()  # raises if the pipeline has failed
    return Table(str(directory / table)).state().rows >= rows


def _until(is_done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() > until:
            raise Failure(f"{what}: not done within {WAIT_S:.0f} s")
        time.sleep(0.1)


def _check_group(group: Group, traffic: Traffic, show: Show) -> None:
    show.check("consumed by a group of two", wanted=traffic.sent[ORDERS], found=group.received)
    show.check(
        "out of order",
        wanted=0,
        found=group.disordered,
        note=f"{ORDER_COUNT:,} orders, {len(STATES)} states each",
    )


def _query(
    spark: "SparkSession", cluster: DemoCluster, directory: Path, traffic: Traffic, *, show: Show
) -> None:
    """Query a topic and its archive, after the topic got more messages than the archive has."""
    from tianzhou.spark.tables.history_table import Cluster
    from tianzhou.spark.tables.query import query
    from tianzhou.spark.tables.table import Table

    archived = Table(str(directory / "archive")).state()
    show.check(
        "rows in the archive",
        wanted=sum(traffic.sent.values()),
        found=archived.rows,
        note=f"{len(archived.files)} Parquet files",
    )
    text = (
        f"SELECT count(*) AS rows, count(DISTINCT brokerName, queueId, queueOffset) AS places,"
        f" count(DISTINCT body.orderId) AS orders FROM {ORDERS}"
    )
    with show.step(f"Query topic and archive: {text}"):
        more = traffic.orders(ORDER_COUNT + 1, LAST_ORDERS)
        cluster.run(send_all(cluster.nameserver, more))
        where = Cluster({"nameserver": cluster.nameserver}, str(directory / "archive"))
        (row,) = query(spark, text, where, bodies="json").collect()
    total = traffic.sent[ORDERS]
    live = LAST_ORDERS * len(STATES)
    show.check(
        "seen by SQL",
        wanted=total,
        found=row.rows,
        note=f"{total - live:,} from Parquet, {live:,} from the log",
    )
    show.check("distinct messages", wanted=total, found=row.places)
    show.check("distinct orders", wanted=ORDER_COUNT + LAST_ORDERS, found=row.orders)


def _check_amounts(spark: "SparkSession", directory: Path, traffic: Traffic, show: Show) -> Sums:
    from tianzhou.spark.tables.table import Table

    table = Table(str(directory / "city_amounts")).read(spark)
    rows: list[Any] = table.selectExpr(
        "unix_seconds(window.start) AS start", "city", "payments", "amount"
    ).collect()
    found: Sums = {(row.start, row.city): (row.payments, row.amount) for row in rows}
    right = sum(found.get(place) == sums for place, sums in traffic.payments.items())
    show.check(
        "sums exact to the cent",
        wanted=len(traffic.payments),
        found=right,
        note=f"of {PAYMENT_COUNT:,} payments per city and minute",
    )
    extra = sum(count for place, (count, _) in found.items() if place not in traffic.payments)
    show.check(
        "late payments counted",
        wanted=0,
        found=extra,
        note=f"{LATE_COUNT} were sent, half an hour late",
    )
    broken = Table(str(directory / "broken")).state().rows
    show.check(
        "in quarantine",
        wanted=len(BROKEN),
        found=broken,
        note="invalid bodies, each with the reason",
    )
    return found
