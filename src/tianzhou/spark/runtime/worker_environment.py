"""Environment variables of the Python processes that Spark starts for a data source.

Spark keeps one map of these variables per source, shared by all streams of the source and not
locked. Every stream that starts puts four variables into the map while jobs of other streams
serialize it. If two streams start at the same time, the map counts an entry twice, and the session
can submit no more jobs: "Task serialization failed: Illegal size 5 of collection, expected 6". If
the variables exist before the first stream starts, Spark only replaces their values, which is safe.
"""

from typing import Any, Final

from pyspark.sql import SparkSession

_VALUES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Placeholders: Spark sets its own values before it starts a process."""


def declare_variables(spark: SparkSession, *sources: str) -> None:
    """Add the variables to these sources of a session.

    Does nothing with Spark Connect, where the Java session cannot be reached.
    """
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return
    known = java_session.sessionState().dataSourceManager()
    for source in sources:
        if known.dataSourceExists(source):
            variables = known.lookupDataSource(source).dataSourceCls().envVars()
            for name, value in _VALUES.items():
                variables.putIfAbsent(name, value)
