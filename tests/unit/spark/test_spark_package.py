"""The public names of `tianzhou.spark`, and the package as a zip file."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tianzhou.spark


def test_spark_package_names_stay_functions_after_submodule_imports() -> None:
    """Importing a module with the name of a function would replace the function."""
    for _ in range(2):
        assert callable(tianzhou.spark.session)
        assert callable(tianzhou.spark.register)
        assert callable(tianzhou.spark.package)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        tianzhou.spark.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_spark_package_import_does_not_import_pyspark() -> None:
    code = "import sys, tianzhou.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_spark_package_has_every_module_that_executors_need(tmp_path: Path) -> None:
    path = tianzhou.spark.package(tmp_path)
    names = zipfile.ZipFile(path).namelist()
    assert "pyspark_rocketmq.py" in names
    assert "tianzhou/spark/source.py" in names
    code = "import tianzhou, tianzhou.spark.source, pyspark_rocketmq; print(tianzhou.__file__)"
    asked = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True,
        text=True,
    )
    assert asked.stdout.startswith(path), asked.stderr
