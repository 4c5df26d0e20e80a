"""Spark sessions for commands; the output of Spark and its workers goes to a file."""

import atexit
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tianzhou.admin.commands.failures import ExitCode, Failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Dates in tables and printed times are the same everywhere.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.adaptive.enabled": "false",
}
SHORT = {
    # For a command of seconds the optimising compiler does not pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_OURS: Final = re.compile(r"\[ROCKETMQ\.(\w+)\]")
_CODES: Final = {
    "NAMESERVER_UNREACHABLE": ExitCode.UNREACHABLE,
    "BROKER_UNREACHABLE": ExitCode.UNREACHABLE,
    "UNKNOWN_TOPIC": ExitCode.NOT_FOUND,
    "NO_PERMISSION": ExitCode.REFUSED,
}


@contextmanager
def session(
    name: str, *, master: str | None, config: Mapping[str, str], log: Path
) -> "Generator[SparkSession]":
    """A session that ends with the block. `master` may be the address of a Connect server; the
    default is `local[*]`, or the master of `spark-submit`."""
    from tianzhou.spark.sessions import session as make

    # Python would print times of rows in the local zone, without naming it.
    os.environ["TZ"] = "UTC"
    time.tzset()
    is_remote = master is not None and master.startswith("sc://")
    # This logger repeats raised errors as JSON, with the stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with _errors_to(log), _own_interrupts():
        spark = make(
            name,
            master=None if is_remote else master,
            remote=master if is_remote else None,
            config={**SETTINGS, **config},
        )
    if not is_remote:
        spark.sparkContext.setLogLevel("WARN")
        is_local = (spark.sparkContext.master or "local").startswith("local")
        if not is_local and "PYSPARK_GATEWAY_PORT" not in os.environ:
            # Executors on other machines get this package; its dependencies must be installed
            # there. Under `spark-submit` they get its files instead.
            spark.sparkContext.addPyFile(_packaged())
    try:
        with spark_errors():
            yield spark
    finally:
        spark.stop()


@contextmanager
def _own_interrupts() -> Generator[None]:
    """Keep Spark from handling Ctrl-C, and Py4J from logging it.

    Spark's handler calls the JVM to cancel all jobs, in the middle of whatever call the main thread
    is waiting for; that fails half of the time and prints stacks. Stopping the session cancels the
    jobs as well. Py4J logs every KeyboardInterrupt that passes through it, with its stack.
    """
    before = signal.getsignal(signal.SIGINT)
    root = logging.getLogger()
    if _is_no_interrupt not in root.filters:
        root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


@contextmanager
def spark_errors() -> Generator[None]:
    """What Spark and its sources say, in one sentence; the stacks are in the log."""
    from pyspark.errors import PySparkException

    from tianzhou.spark.errors import sentence_of

    try:
        yield
    except PySparkException as error:
        sentence = sentence_of(error)
        ours = _OURS.match(sentence)
        code = _CODES.get(ours[1] if ours else "", ExitCode.FAILED)
        raise Failure(sentence, code) from error


def _packaged() -> str:
    from tianzhou.spark.packaging import package

    directory = tempfile.mkdtemp(prefix="tianzhou-")
    # Delete it at exit: Spark serves the package to its workers until then.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return package(directory)


@contextmanager
def _errors_to(log: Path) -> Generator[None]:
    """Processes started in this block keep this file as their error stream."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    ours = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)
