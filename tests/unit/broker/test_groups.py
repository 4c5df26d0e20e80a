"""The table of subscription groups."""

import pytest

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import Groups
from tianzhou.net.rpc import RequestRejected
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.tables import SubscriptionGroupConfig, SubscriptionGroupTable


def made(disk: SimDisk | None = None, config: BrokerConfig | None = None) -> Groups:
    tables = Tables(disk or SimDisk(), "config")
    return Groups(tables.groups, config or BrokerConfig(), ManualClock())


def test_groups_include_the_system_groups() -> None:
    assert made().get("TOOLS_CONSUMER") is not None


def test_groups_auto_create_follows_its_setting() -> None:
    disk = SimDisk()
    assert made(disk).obtain("readers") == SubscriptionGroupConfig(group_name="readers")
    strict = made(disk, BrokerConfig(auto_create_groups=False))
    assert strict.obtain("readers") is not None
    assert strict.obtain("others") is None
    assert strict.obtain("CID_RMQ_SYS_x") is not None
    strict.adopt(BrokerConfig())
    assert strict.obtain("others") is not None
    assert strict.remove("others")
    assert not strict.remove("others")


def test_groups_are_limited_and_names_validated() -> None:
    groups = made(config=BrokerConfig(groups_max=16))
    for number in range(16 - len(groups.all())):
        groups.obtain(f"g{number}")
    with pytest.raises(RequestRejected, match="groups_max"):
        groups.obtain("one-more")
    with pytest.raises(TianzhouError):
        groups.obtain("a b")


def test_groups_forbidden_topics_are_saved_and_deleted_with_the_group() -> None:
    disk = SimDisk()
    groups = made(disk)
    groups.obtain("readers")
    groups.allow_read("readers", "orders", allowed=False)
    groups.allow_read("readers", "orders", allowed=False)
    assert not made(disk).may_read("readers", "orders")
    assert made(disk).may_read("readers", "others")
    groups.remove("readers")
    assert made(disk).may_read("readers", "orders")


def test_groups_forbidden_table_keeps_unknown_bits() -> None:
    disk = SimDisk()
    table = SubscriptionGroupTable(forbidden_table={"g": {"t": 1}})
    Tables(disk, "config").groups.save(table)
    groups = made(disk)
    assert groups.may_read("g", "t")
    groups.allow_read("g", "t", allowed=False)
    assert groups.table().forbidden_table == {"g": {"t": 5}}
    groups.allow_read("g", "t", allowed=True)
    assert groups.table().forbidden_table == {"g": {"t": 1}}


def test_groups_table_edited_by_hand_is_validated() -> None:
    disk = SimDisk()
    bad = SubscriptionGroupConfig(group_name="a b")
    Tables(disk, "config").groups.save(
        SubscriptionGroupTable(subscription_group_table={"a b": bad})
    )
    with pytest.raises(UsageError):
        made(disk)
