"""Settings are shown as a broker reads them, and a few are changed while it runs."""

import pytest

from tianzhou.base.settings import declarations, load
from tianzhou.broker import settable as module
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.settable import CHANGEABLE, Settable, parse_properties, table_of
from tianzhou.net.exchange import Refused
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.wire._generated_codes import ResponseCode


def made() -> tuple[Settable, list[BrokerConfig]]:
    settable, taken = Settable(BrokerConfig(), StoreConfig(), "data"), list[BrokerConfig]()
    settable.adopt.append(taken.append)
    return settable, taken


def refused(text: bytes) -> Refused:
    settable, taken = made()
    with pytest.raises(Refused) as caught:
        settable.change(text, 1)
    assert taken == []
    assert settable.config == BrokerConfig()
    return caught.value


def test_what_is_shown_can_be_read_back() -> None:
    broker = BrokerConfig(permission=4, auto_create_topics=False, region="x")
    assert load(BrokerConfig, table_of(broker)) == (broker, [])
    store = StoreConfig(
        flush_mode=FlushMode.SYNC, disk_clean_ratio=0.6, retention_at_hours=(4, 16),
        delay_levels_ms=(1_000, 90_000, 7_200_000, 86_400_000),
    )  # fmt: skip
    assert load(StoreConfig, table_of(store)) == (store, [])
    assert table_of(store)["messageDelayLevel"] == "1s 90s 2h 1d"


def test_every_setting_is_shown_once() -> None:
    settable, _ = made()
    lines = settable.text().decode().splitlines()
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names))
    assert len(names) == len(declarations(BrokerConfig)) + len(declarations(StoreConfig)) + 2
    assert "storePathRootDir=data" in lines


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.setattr(module, "_SECRET", re.compile("region"))
    assert table_of(BrokerConfig(region="hidden"))["regionId"] == "******"


def test_a_change_reaches_the_owners() -> None:
    settable, taken = made()
    asked = settable.change(b"# a comment\n\n brokerPermission = 4 \ntopics_max=20\n", 77)
    assert asked == {"brokerPermission": "4", "topics_max": "20"}
    assert taken == [settable.config]
    assert (settable.config.permission, settable.config.topics_max) == (4, 20)
    assert (settable.version.counter, settable.version.timestamp) == (1, 77)
    settable.change(b"autoCreateTopicEnable=false", 78)
    assert settable.config.permission == 4


@pytest.mark.parametrize(
    "text",
    [b"storePathRootDir=/x", b"listenPort=1", b"brokerPermission=4\nbrokerName=x", b"unknown=1",
     b"flushDiskType=SYNC_FLUSH", b"adminTool=x", b"=1"],
)  # fmt: skip
def test_one_key_that_may_not_change_refuses_all(text: bytes) -> None:
    assert refused(text).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "text",
    [b"brokerPermission=7", b"brokerPermission=3", b"brokerPermission=x", b"topics_max=-1",
     b"autoCreateTopicEnable=perhaps", b"no sign", b"\xff=1", b"#" * 70_000],
)  # fmt: skip
def test_values_that_make_no_sense(text: bytes) -> None:
    assert refused(text).code == ResponseCode.INVALID_PARAMETER


def test_changeable_settings_have_bounds_or_are_switches() -> None:
    declared = declarations(BrokerConfig)
    for name in CHANGEABLE:
        is_switch = isinstance(getattr(BrokerConfig(), name), bool)
        assert is_switch or declared[name].minimum is not None


def test_properties_are_lines() -> None:
    assert parse_properties(b"a=1\r\n!no\nb = x=y\n") == {"a": "1", "b": "x=y"}
