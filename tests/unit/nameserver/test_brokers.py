"""Groups, and the addresses of their members as clients see them."""

from tianzhou.nameserver.brokers import BrokerGroup, Member
from tianzhou.wire.tables import DataVersion


def member(address: str, *, by_dial: bool = False, ha_address: str = "") -> Member:
    return Member(
        address=address,
        ha_address=ha_address,
        by_dial=by_dial,
        data_version=DataVersion(),
        timeout_s=1,
        heard_s=0,
        connection=None,
    )


def test_member_address_is_replaced_only_if_not_configured() -> None:
    local = "10.0.0.5:9876"
    chosen = member("127.0.0.1:1", ha_address="127.0.0.1:2")
    assert chosen.address_for(local) == "127.0.0.1:1"
    assert chosen.ha_address_for(local) == "127.0.0.1:2"
    found = member("127.0.0.1:1", by_dial=True, ha_address="127.0.0.1:2")
    assert found.address_for(local) == "10.0.0.5:1"
    assert found.ha_address_for(local) == "10.0.0.5:2"
    assert found.address_for(None) == "127.0.0.1:1"
    assert member("127.0.0.1:1", by_dial=True).ha_address_for(local) == ""


def test_broker_group_addresses_are_ordered_by_id() -> None:
    group = BrokerGroup("b", "c", members={2: member("h:3"), 0: member("h:1")})
    assert list(group.addresses_for(None).items()) == [(0, "h:1"), (2, "h:3")]
    assert group.id_of("h:3") == 2
    assert group.id_of("h:9") is None
