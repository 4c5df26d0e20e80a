"""This package as a zip file, for clusters whose machines do not have it installed."""

import zipfile
from pathlib import Path
from typing import Final

import tianzhou

_SOURCES: Final = ("pyspark_rocketmq.py", "pyspark_rocketmq_store.py")


def package(directory: str | Path = ".") -> str:
    """Write `tianzhou.zip` into a directory and return its path.

    Pass the path to `spark-submit --py-files` or to `spark.addArtifacts(path, pyfile=True)`.
    Executors also need `numpy`, `pyarrow` and `msgspec`: these have compiled parts, which Python
    cannot load from a zip file. An existing file is overwritten. Raises OSError if the file cannot
    be written.

        spark.addArtifacts(tianzhou.spark.package("/tmp"), pyfile=True)
    """
    root = Path(tianzhou.__file__).parent
    # Built-in pipelines are YAML files beside the modules.
    ours = sorted([*root.rglob("*.py"), *root.rglob("*.yml")])
    files = [*ours, *(root.parent / name for name in _SOURCES)]
    target = Path(directory) / "tianzhou.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(root.parent).as_posix())
    return str(target)
