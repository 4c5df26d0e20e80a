"""This package as a file, for clusters whose machines don't have it."""

import zipfile
from pathlib import Path
from typing import Final

import tianzhou

_SOURCES: Final = ("pyspark_rocketmq.py", "pyspark_rocketmq_store.py")


def package(directory: str | Path = ".") -> str:
    """Write `tianzhou.zip` and return its path, for `spark-submit --py-files` or
    `spark.addArtifacts(path, pyfile=True)`.

    Executors need `numpy`, `pyarrow` and `msgspec` besides; these have compiled parts, which
    Python can't load from a zip file.
    """
    root = Path(tianzhou.__file__).parent
    # Built-in pipelines are files of their own.
    ours = sorted([*root.rglob("*.py"), *root.rglob("*.yml")])
    files = [*ours, *(root.parent / name for name in _SOURCES)]
    target = Path(directory) / "tianzhou.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(root.parent).as_posix())
    return str(target)
