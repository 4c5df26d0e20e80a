"""How brokers leave the route table, and what it tells of those that live."""

import msgspec
import pytest
from registering import A, B, C, broker
from route_world import World

from tianzhou.nameserver.routes import in_zone
from tianzhou.wire.tables import DataVersion


@pytest.fixture
def world() -> World:
    return World()


# Leaving


def test_unregister_of_the_last_member_removes_its_topics(world: World) -> None:
    world.register(broker(A))
    world.register(broker(B, broker_id=1))
    assert world.table.unregister("broker-a", A)
    assert world.route().broker_datas[0].broker_addrs == {1: B}
    assert world.table.unregister("broker-a", B)
    assert world.table.route_of("T") is None
    assert world.table.cluster_table().cluster_addr_table == {}
    assert not world.table.unregister("broker-a", B)
    assert not world.table.unregister("broker-x", B)


def test_replaced_broker_does_not_remove_its_successor(world: World) -> None:
    world.register(broker(A))
    world.register(broker(B))
    assert not world.table.unregister("broker-a", A)
    assert world.addresses() == {0: B}


def test_silent_broker_is_evicted_after_the_timeout(world: World) -> None:
    world.register(broker(A))
    world.now_s = 100
    world.register(broker(B, name="broker-b"))
    assert world.table.evict(120.0) == []
    (lost,) = world.table.evict(120.1)
    assert (lost.name, lost.broker_id, lost.member.address) == ("broker-a", 0, A)
    assert set(lost.rows) == {"T", "U"}
    assert world.table.has_link(world.connection)
    assert [data.broker_name for data in world.route().broker_datas] == ["broker-b"]
    assert len(world.table.evict(1e9)) == 1
    assert not world.table.has_link(world.connection)


def test_silent_broker_is_evicted_after_its_own_timeout(world: World) -> None:
    world.register(broker(A, timeout_s=10))
    assert world.table.evict(10) == []
    assert len(world.table.evict(10.5)) == 1


@pytest.mark.parametrize("sign", ["register", "heartbeat"])
def test_heartbeat_keeps_a_broker_registered(world: World, sign: str) -> None:
    world.register(broker(A))
    world.now_s = 119
    if sign == "register":
        world.register(broker(A))
    else:
        world.table.heard("broker-a", A, world.now_s)
        world.table.heard("broker-a", B, 1000)
        world.table.heard("broker-x", A, 1000)
    assert world.table.evict(200) == []
    assert len(world.table.evict(240)) == 1


def test_closed_connection_removes_its_brokers(world: World) -> None:
    world.register(broker(A))
    world.register(broker(C, name="broker-c"))
    first, world.connection = world.connection, object()
    world.register(broker(B, name="broker-b"))
    assert [lost.name for lost in world.table.closed(first)] == ["broker-a", "broker-c"]
    assert world.table.closed(first) == []
    assert world.table.closed(object()) == []
    assert world.addresses("broker-b") == {0: B}


def test_closed_old_connection_keeps_a_reconnected_broker(world: World) -> None:
    world.register(broker(A))
    first, world.connection = world.connection, object()
    world.register(broker(A))
    assert world.table.closed(first) == []
    assert world.addresses() == {0: A}
    assert len(world.table.closed(world.connection)) == 1


# Questions


def test_data_version_of_a_broker_is_remembered(world: World) -> None:
    world.register(broker(A, counter=7))
    assert world.table.data_version_of("broker-a", A) == DataVersion(counter=7)
    assert world.table.data_version_of("broker-a", B) is None
    assert world.table.data_version_of("broker-x", A) is None


def test_cluster_table_lists_all_clusters_and_brokers(world: World) -> None:
    world.register(broker(A, cluster="c"))
    world.register(broker(B, cluster="c", broker_id=1, zone="z"))
    world.register(broker(C, cluster="d", name="broker-c"))
    table = world.table.cluster_table()
    assert table.cluster_addr_table == {"c": ["broker-a"], "d": ["broker-c"]}
    assert table.broker_addr_table["broker-a"].broker_addrs == {0: A, 1: B}
    assert table.broker_addr_table["broker-a"].zone_name == "z"
    assert table.broker_addr_table["broker-c"].zone_name is msgspec.UNSET
    assert world.table.names_in("c") == ("broker-a",)
    assert world.table.broker_count == 2


def test_master_of_returns_the_addresses_of_the_master(world: World) -> None:
    assert world.table.master_of("broker-a") is None
    world.register(broker(A, ha_address="10.0.0.1:10912"))
    master = world.table.master_of("broker-a")
    assert master is not None
    assert (master.address, master.ha_address) == (A, "10.0.0.1:10912")


def test_route_returns_unconfigured_addresses_as_dialled(world: World) -> None:
    world.register(broker("127.0.0.1:10911", by_dial=True))
    world.register(broker("127.0.0.1:10921", name="broker-b"))
    local = "192.168.1.5:9876"
    route = world.table.route_of("T", dialled=local)
    assert route is not None
    expected = [{0: "192.168.1.5:10911"}, {0: "127.0.0.1:10921"}]
    assert [data.broker_addrs for data in route.broker_datas] == expected
    table = world.table.cluster_table(local).broker_addr_table
    assert table["broker-a"].broker_addrs == expected[0]
    assert world.table.addresses_of("broker-a", local) == expected[0]
    assert world.addresses() == {0: "127.0.0.1:10911"}
    assert world.table.unregister("broker-a", "127.0.0.1:10911")


def test_in_zone_keeps_brokers_of_the_zone(world: World) -> None:
    world.register(broker(A, zone="East"))
    world.register(broker(B, name="broker-b", zone="west"))
    world.register(broker(C, name="broker-c"))

    def names(zone: str) -> tuple[list[str], list[str]]:
        route = in_zone(world.route(), zone)
        return (
            [data.broker_name for data in route.broker_datas],
            [row.broker_name for row in route.queue_datas],
        )

    assert names("east") == (["broker-a"], ["broker-a"])
    assert names("north")[0] == ["broker-a", "broker-b", "broker-c"]


def test_in_zone_keeps_groups_without_a_master(world: World) -> None:
    world.register(broker(A, zone="east"))
    world.register(broker(B, name="broker-b", broker_id=1, acting_master=True))
    near = in_zone(world.route(), "east")
    assert {data.broker_name for data in near.broker_datas} == {"broker-a", "broker-b"}
