"""Run every benchmark: `python -m bench [DIRECTORY]`. Files are created in the directory."""

import sys
import tempfile
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from bench import (
    broker,
    client_consumer,
    client_producer,
    cold_reading,
    crowds,
    gate,
    loads,
    memory,
    raft,
    replication,
    spark,
    store,
)
from bench.measure import Row, show

RESULTS = Path("build/bench.jsonl")


def main() -> None:
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    rows: list[Row] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring")
        for item in chain(
            store.rows(directory),
            broker.rows(),
            client_producer.rows(),
            client_consumer.rows(),
            raft.rows(),
            replication.rows(),
            cold_reading.rows(directory),
            spark.rows(directory),
        ):
            rows.append(item)
            progress.update(task, description=f"measured: {item.group}, {item.name}")
        progress.update(task, description="measuring memory, with a log of 10 GiB")
        limits = memory.limits(directory)
        for limit in chain(crowds.limits(), loads.limits(directory), gate.limits()):
            limits.append(limit)
            progress.update(task, description=f"measured: {limit.name}")
    show(rows, limits, RESULTS)
    missed = [f"{item.group}, {item.name}" for item in [*rows, *limits] if not item.holds]
    if missed:
        print("below the floor:", "; ".join(missed))
        sys.exit(1)


if __name__ == "__main__":
    main()
