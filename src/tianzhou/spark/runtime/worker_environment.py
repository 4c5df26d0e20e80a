"""The variables of the Python processes that Spark starts for a source, named before it is used.

Spark keeps one map of them for each source and for all its streams, without a lock, and every
stream that starts puts its four there while jobs of other streams are writing the map out. Two
streams that start at once then count an entry twice, and from there on no job of the session can
be sent: "Task serialization failed: Illegal size 5 of collection, expected 6". Where the names are
there already, only values are put in their place, which disturbs nobody.
"""

from typing import Any, Final

from pyspark.sql import SparkSession

_VALUES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Spark puts its own in their place before it starts a process."""


def declare_variables(spark: SparkSession, *sources: str) -> None:
    """In a session whose Java we can reach; behind Spark Connect there is none."""
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return
    known = java_session.sessionState().dataSourceManager()
    for source in sources:
        if known.dataSourceExists(source):
            variables = known.lookupDataSource(source).dataSourceCls().envVars()
            for name, value in _VALUES.items():
                variables.putIfAbsent(name, value)
