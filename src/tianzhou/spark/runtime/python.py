"""The Python that Spark's workers on this machine run: ours, without the zip.

Spark puts a zip of its own Python sources before everything else. Python keeps nothing of what it
compiles out of a zip, so every process would compile half of PySpark again, which takes longer
than all the rest of its start; a stream starts one for its source each time. Where the same
PySpark is installed beside us, a script in Python's place takes the zip off.
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
"""Spark may name the zip several times."""


_VARIABLE: Final = "PYSPARK_PYTHON"


def provide(*, is_local: bool) -> None:
    """Workers run what we run, not whatever `python3` is on the PATH; unless one was chosen."""
    python = Path(sys.executable)
    script = launch_scripts.script_directory(python) / "bin" / "python"
    # A session before this one may have been local: that was our choice, not the user's.
    if os.environ.get(_VARIABLE) in (None, str(script), sys.executable):
        if is_local and _is_installed():
            launch_scripts.write(script, _SCRIPT.format(python=python))
            os.environ[_VARIABLE] = str(script)
        else:
            os.environ[_VARIABLE] = sys.executable


def _is_installed() -> bool:
    """Whether workers find PySpark without being told where it is."""
    place = Path(pyspark.__file__).parent.parent
    return place in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
