"""Optional modules: the table agrees with what the package declares."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from tianzhou.base.extras import EXTRA_OF, missing_extra

PYPROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"
NOT_FOR_USERS: Final = ("all", "core-dev", "dev")


def declared() -> dict[str, set[str]]:
    """The distributions that each extra installs, in lower case."""
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    return {
        extra: {re.split(r"[\[<>=;~! ]", line)[0].lower() for line in lines}
        for extra, lines in project["optional-dependencies"].items()
        if extra not in NOT_FOR_USERS
    }


def test_extra_table_covers_every_declared_extra() -> None:
    assert set(EXTRA_OF.values()) == declared().keys()


@pytest.mark.parametrize("module", EXTRA_OF)
def test_extra_table_names_the_extra_that_installs_the_module(module: str) -> None:
    pytest.importorskip(module, reason="installed by make setup, not by make setup-core")
    owners = {name.lower() for name in packages_distributions().get(module, ())}
    assert owners & declared()[EXTRA_OF[module]], f"{module} comes with {owners}"


def test_missing_extra_of_a_submodule_is_that_of_its_package() -> None:
    error = ModuleNotFoundError("no", name="pyspark.sql.datasource")
    assert missing_extra(error) == 'pyspark is not installed; run: pip install "tianzhou[spark]"'


@pytest.mark.parametrize("name", [None, "click", "tianzhou.store", "pysparkling"])
def test_missing_extra_of_an_unlisted_module_is_none(name: str | None) -> None:
    assert missing_extra(ModuleNotFoundError("no", name=name)) is None
