"""Reports over traces and topics: one batch job each."""

import tempfile
from pathlib import Path

from tianzhou.cmd.spark_session import SHORT, session
from tianzhou.cmd.sql import show
from tianzhou.spark.pipelines import audit, trace
from tianzhou.spark.tables.history_table import Cluster, history
from tianzhou.wire.names import TRACE_TOPIC


def run(
    audited: str | None,
    *,
    nameserver: str,
    archive: str | None,
    master: str | None,
    form: str,
    output: Path | None,
) -> None:
    """Audit a topic, or report the latencies of all traced messages."""
    cluster = Cluster({"nameserver": nameserver}, archive)
    log = Path(tempfile.gettempdir()) / "tianzhou-report.log"
    with session("tianzhou-report", master=master, config=SHORT, log=log) as spark:
        records = trace.records(history(spark, TRACE_TOPIC, cluster)).cache()
        if audited is None:
            found = trace.report(records)
        else:
            there = audit.stored(history(spark, audited, cluster))
            made = audit.produced(records, audited)
            found = audit.report(made, there, audit.consumed(records))
        show(found, form, output, rows_max=1000)
