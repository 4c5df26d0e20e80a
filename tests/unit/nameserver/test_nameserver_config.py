"""Settings of the name server, and which of them a request may change."""

import dataclasses
from pathlib import Path

import pytest

from tianzhou.base.settings import SettingsError, check, declarations, load
from tianzhou.nameserver.config import (
    SETTABLE,
    NameServerConfig,
    changed,
    locked,
    read_properties,
    write_properties,
)


def test_every_nameserver_setting_has_bounds_and_a_description() -> None:
    declared = declarations(NameServerConfig)
    for field in dataclasses.fields(NameServerConfig):
        about = declared[field.name]
        assert about.help.endswith(".")
        if type(field.default) is int:
            assert about.minimum is not None
            assert about.maximum is not None
    check(NameServerConfig())
    assert declared.keys() >= SETTABLE


def test_nameserver_config_file_of_java_is_parsed() -> None:
    text = (
        "# Fri\n! old\n\nlistenPort=9877\n orderMessageEnable : true \nbindAddress=0.0.0.0\nodd\n"
    )
    values = read_properties(text)
    config, unknown = load(NameServerConfig, values)
    assert (config.listen_port, config.order_config_enabled) == (9877, True)
    assert config.bind_address == "0.0.0.0"
    assert unknown == ["odd"]


def test_nameserver_config_round_trips_through_properties() -> None:
    config = NameServerConfig(listen_port=1, order_config_enabled=True)
    text = write_properties(config)
    assert "orderMessageEnable=true\n" in text
    assert "broker_timeout_ms=120000\n" in text
    assert load(NameServerConfig, read_properties(text)) == (config, [])


def test_locked_lists_settings_that_cannot_change() -> None:
    assert locked({"orderMessageEnable": "true", "scan_interval_ms": "10"}) == []
    assert locked({"listenPort": "1", "orderMessageEnable": "true"}) == ["listenPort"]
    for key in (
        "bindAddress",
        "kvConfigPath",
        "configStorePath",
        "rocketmqHome",
        "",
        "clusterTest",
    ):
        assert locked({key: "x"}) == [key]


def test_changed_keeps_all_other_settings() -> None:
    config = NameServerConfig(listen_port=5, topic_list_enabled=False)
    found = changed(config, {"orderMessageEnable": "true", "scan_interval_ms": "20"})
    assert found == dataclasses.replace(config, order_config_enabled=True, scan_interval_ms=20)


@pytest.mark.parametrize("value", ["x", "0", "999999999"])
def test_changed_rejects_a_value_out_of_bounds(value: str) -> None:
    with pytest.raises(SettingsError):
        changed(NameServerConfig(), {"scanNotActiveBrokerInterval": value})


def test_nameserver_page_lists_the_declared_settings() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "nameserver.md"
    table = page.read_text(encoding="utf-8").split("## Settings")[1].split("## Limits")[0]
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    defaults = dataclasses.asdict(NameServerConfig())
    assert rows == [
        [name, str(defaults[name]).lower(), about.alias or "", "yes" if name in SETTABLE else "no"]
        for name, about in declarations(NameServerConfig).items()
    ]
