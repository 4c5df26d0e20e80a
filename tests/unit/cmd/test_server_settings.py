"""Where settings come from: precedence, spellings, and names that mean nothing."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tianzhou.base.settings import SettingsError, load, setting
from tianzhou.cmd.server_settings import Given, Sources


@dataclass(frozen=True, kw_only=True)
class Config:
    port: int = setting(1, min=0, max=9, alias="listenPort", help="…")
    flush_mode: str = setting("async", alias="flushDiskType", help="…")
    nameservers: str = setting("", alias="namesrvAddr", help="…")
    ha_secret: str = setting("", help="…")


def taken(
    tmp_path: Path, file: str = "", environment: dict[str, str] | None = None, *changes: str
) -> Given:
    path = tmp_path / "broker.conf"
    path.write_text(file)
    given = Given([Config])
    given.take_all(Sources(path, changes), environment or {}, elsewhere=["scan_interval_ms"])
    return given


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("setting", "variable", "file", "did_you_mean")
    return [
        {name: vars(record)[name] for name in names if name in vars(record)}
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]


@pytest.mark.parametrize(
    ("file", "environment", "changes", "wanted"),
    [
        ("", {}, (), 1),
        ("listenPort=2", {}, (), 2),
        ("listenPort=2", {"TIANZHOU_PORT": "3"}, (), 3),
        ("port=2", {"TIANZHOU_PORT": "3"}, ("listenPort=4",), 4),
        ("port=2", {}, ("listenPort=4", "port=5"), 5),
    ],
)
def test_server_settings_later_source_wins_in_any_spelling(
    tmp_path: Path, file: str, environment: dict[str, str], changes: tuple[str, ...], wanted: int
) -> None:
    config, unknown = load(Config, taken(tmp_path, file, environment, *changes).values)
    assert (config.port, unknown) == (wanted, [])


def test_server_settings_option_wins_over_all_sources(tmp_path: Path) -> None:
    given = taken(tmp_path, "port=2", {"TIANZHOU_PORT": "3"}, "port=4")
    given.put("listenPort", 5, "--port")
    assert load(Config, given.values)[0].port == 5


def test_server_settings_invalid_set_options_get_suggestions(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        taken(tmp_path, "", None, "flush_mod=sync", "novel=1", "port", "=1", "ha_secret")
    assert caught.value.problems == [
        "unknown setting 'flush_mod' in --set (did you mean 'flush_mode'?)",
        "unknown setting 'novel' in --set (see docs/configuration.md)",
        "invalid --set 'port'; use --set NAME=VALUE",
        "invalid --set '=1'; use --set NAME=VALUE",
        "invalid --set ******; use --set NAME=VALUE",
    ]


@pytest.mark.parametrize(
    ("file", "environment", "changes", "wanted"),
    [
        ("listenPort=x", {}, (), "listenPort = 'x': must be a whole number (from {file})"),
        ("", {"TIANZHOU_PORT": "x"}, (), "port = 'x': must be a whole number (from TIANZHOU_PORT)"),
        ("", {}, ("port=x",), "port = 'x': must be a whole number (from --set)"),
        ("", {}, ("port=10",), "listenPort = 10: must be from 0 to 9 (from --set)"),
    ],
)
def test_server_settings_invalid_value_reports_its_source(
    tmp_path: Path, file: str, environment: dict[str, str], changes: tuple[str, ...], wanted: str
) -> None:
    given = taken(tmp_path, file, environment, *changes)
    with pytest.raises(SettingsError) as caught, given.located():
        load(Config, given.values)
    assert caught.value.problems == [wanted.format(file=tmp_path / "broker.conf")]


def test_server_settings_unknown_name_in_a_file_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = taken(tmp_path, "flushDiskTyp=sync\nnovel=1\n")
    given.warn_unknown(load(Config, given.values)[1])
    file = str(tmp_path / "broker.conf")
    assert facts(caplog) == [
        {"setting": "flushDiskTyp", "file": file, "did_you_mean": "flushDiskType"},
        {"setting": "novel", "file": file},
    ]


def test_server_settings_log_misspelt_variables_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings of other servers, variables of other tools and empty ones are not ours to name."""
    environment = {
        "TIANZHOU_FLUSH_MOD": "sync",
        "TIANZHOU_NAMESERVER": "a:1",
        "TIANZHOU_SCAN_INTERVAL_MS": "9",
        "TIANZHOU_SERVICE_HOST": "10.0.0.1",
        "TIANZHOU_HA_SECRET": "",
        "FLUSH_MODE": "sync",
    }
    assert load(Config, taken(tmp_path, "", environment).values)[0] == Config()
    assert facts(caplog) == [
        {"variable": "TIANZHOU_FLUSH_MOD", "did_you_mean": "TIANZHOU_FLUSH_MODE"}
    ]


def test_server_settings_ignore_a_kubernetes_service_link(tmp_path: Path) -> None:
    given = taken(tmp_path, "", {"TIANZHOU_PORT": "tcp://10.0.0.1:9876"})
    assert load(Config, given.values)[0].port == 1
