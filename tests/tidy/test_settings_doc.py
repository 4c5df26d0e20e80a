"""docs/configuration.md is what the declarations say, and the declarations say enough."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
from sources import ROOT

from tianzhou.base.settings import check, declarations, load
from tianzhou.broker.config import BrokerConfig
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import StoreConfig

KINDS = (BrokerConfig, StoreConfig, ReplicationConfig, RaftSettings)


def test_settings_page_is_up_to_date() -> None:
    asked = subprocess.run(
        [sys.executable, "tools/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_settings_field_is_declared(kind: type[Any]) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == declarations(kind).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_has_a_description_and_numbers_have_bounds(kind: type[Any]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, declared in declarations(kind).items():
        default = defaults[name]
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert declared.minimum is not None, name
            assert declared.maximum is not None, name
        assert declared.help[0].isupper() or declared.help[0].isdigit(), name
        assert declared.help[-1] in ".…", name
        assert "|" not in declared.help, name


def test_setting_names_are_unique() -> None:
    """One configuration file contains the settings of all classes."""
    declared = [found for kind in KINDS for found in declarations(kind).items()]
    names = [name for name, _ in declared] + [found.alias for _, found in declared if found.alias]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", KINDS)
def test_setting_defaults_are_within_bounds(kind: type[Any]) -> None:
    check(kind())
    assert load(kind, {})[0] == kind()
