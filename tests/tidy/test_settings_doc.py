"""docs/settings.md is what the declarations say, and the declarations say enough."""

import dataclasses
import subprocess
import sys

from sources import ROOT

from tianzhou.base.settings import check, declarations, load
from tianzhou.store.config import StoreConfig


def test_the_page_is_fresh() -> None:
    asked = subprocess.run(
        [sys.executable, "tools/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stderr


def test_every_field_is_declared() -> None:
    fields = {field.name for field in dataclasses.fields(StoreConfig)}
    assert fields == declarations(StoreConfig).keys()


def test_every_number_has_bounds_and_every_setting_a_sentence() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(StoreConfig)}
    for name, declared in declarations(StoreConfig).items():
        default = defaults[name]
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert declared.minimum is not None, name
            assert declared.maximum is not None, name
        assert declared.help[0].isupper(), name
        assert declared.help[-1] in ".…", name
        assert "|" not in declared.help, name


def test_names_are_not_used_twice() -> None:
    declared = declarations(StoreConfig)
    names = [*declared, *(found.alias for found in declared.values() if found.alias)]
    assert len(names) == len(set(names))


def test_defaults_are_within_their_bounds() -> None:
    check(StoreConfig())
    assert load(StoreConfig, {})[0] == StoreConfig()
