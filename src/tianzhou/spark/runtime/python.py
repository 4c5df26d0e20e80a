"""The Python of Spark's workers on this machine: the current one, without PySpark's zip.

Spark puts a zip of its own Python sources first on the module path. Python does not cache what it
compiles from a zip, so every worker process would compile half of PySpark again, which takes longer
than the rest of its start; every stream starts one such process for its source. If the same PySpark
is installed in this environment, a script in place of Python removes the zip from the path.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

from tianzhou.spark.runtime import launch_scripts

_SCRIPT: Final = """#!/bin/sh
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case $place in */pyspark.zip) ;; *) kept=$kept:$place ;; esac
done
PYTHONPATH=${{kept#:}} exec "{python}" "$@"
"""
"""Spark may list the zip several times."""


_VARIABLE: Final = "PYSPARK_PYTHON"


def provide(*, is_local: bool) -> None:
    """Make workers run the current interpreter instead of the `python3` on the PATH.

    Does nothing if the user has chosen another interpreter with PYSPARK_PYTHON.
    """
    python = Path(sys.executable)
    script = launch_scripts.script_directory(python) / "bin" / "python"
    # An earlier local session may have set the variable; that was not the user's choice.
    if os.environ.get(_VARIABLE) in (None, str(script), sys.executable):
        if is_local and _is_installed():
            launch_scripts.write(script, _SCRIPT.format(python=python))
            os.environ[_VARIABLE] = str(script)
        else:
            os.environ[_VARIABLE] = sys.executable


def _is_installed() -> bool:
    """Return whether workers find PySpark without an entry in PYTHONPATH."""
    place = Path(pyspark.__file__).parent.parent
    return place in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
