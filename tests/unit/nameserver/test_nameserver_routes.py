"""What the route table makes of registrations, one rule each."""

import pytest
from registering import A, B, C, broker, topic
from route_world import World

from tianzhou.nameserver.routes import RouteTable, Verdict
from tianzhou.nameserver.topics import TableFull, TopicTable


@pytest.fixture
def world() -> World:
    return World()


# Registration


def test_register_creates_the_routes_of_a_broker(world: World) -> None:
    assert world.register(broker()) is Verdict.FIRST
    route = world.route()
    assert [data.broker_addrs for data in route.broker_datas] == [{0: A}]
    assert [(row.broker_name, row.read_queue_nums) for row in route.queue_datas] == [
        ("broker-a", 4)
    ]
    assert world.register(broker()) is Verdict.AGAIN
    assert world.route() == route
    assert world.table.route_of("X") is None


def test_register_of_two_brokers_with_one_topic_routes_to_both(world: World) -> None:
    world.register(broker())
    world.register(broker(B, name="broker-b"))
    names = {data.broker_name for data in world.route().broker_datas}
    assert (
        names == {"broker-a", "broker-b"} == {row.broker_name for row in world.route().queue_datas}
    )


def test_register_of_a_single_topic_of_an_unknown_broker_is_rejected(world: World) -> None:
    assert world.register(broker(A, "T")) is Verdict.NOT_ALONE
    assert not world.table.has_broker("broker-a")
    world.register(broker())
    assert world.register(broker(A, "V", counter=2)) is Verdict.AGAIN
    assert world.route("V").queue_datas
    assert world.register(broker(B, "T", broker_id=1)) is Verdict.NOT_ALONE
    assert world.addresses() == {0: A}


def test_register_of_a_master_at_a_new_address_replaces_the_old_one(world: World) -> None:
    world.register(broker(A))
    assert world.register(broker(B)) is Verdict.AGAIN
    assert world.addresses() == {0: B}


def test_register_of_a_promoted_slave_removes_its_old_id(world: World) -> None:
    world.register(broker(A))
    world.register(broker(B, broker_id=1))
    assert world.addresses() == {0: A, 1: B}
    world.table.unregister("broker-a", A)
    assert world.register(broker(B, broker_id=0)) is Verdict.FIRST
    assert world.addresses() == {0: B}


def test_register_of_the_last_slave_as_master_keeps_its_routes(world: World) -> None:
    world.register(broker(A))
    world.register(broker(B, broker_id=1))
    world.table.unregister("broker-a", A)
    world.register(broker(B, "V", "W", broker_id=0))
    assert world.route("T").broker_datas[0].broker_addrs == {0: B}


@pytest.mark.parametrize(("theirs", "holder"), [(4, A), (5, B), (6, B)])
def test_register_with_a_lower_state_version_is_outdated(
    world: World, theirs: int, holder: str
) -> None:
    world.register(broker(A, state_version=5))
    verdict = world.register(broker(B, "V", "W", state_version=theirs))
    assert (verdict is Verdict.OUTDATED) is (holder == A)
    assert world.addresses() == {0: holder}
    assert (world.table.route_of("V") is None) is (holder == A)


def test_register_that_is_outdated_still_removes_the_old_id(world: World) -> None:
    world.register(broker(A, state_version=5))
    world.register(broker(B, broker_id=1, state_version=4))
    assert world.register(broker(B, state_version=4)) is Verdict.OUTDATED
    assert world.addresses() == {0: A}


def test_register_of_the_same_address_may_lower_its_state_version(world: World) -> None:
    world.register(broker(A, state_version=5))
    assert world.register(broker(A, state_version=1)) is Verdict.AGAIN


def test_register_in_another_cluster_leaves_the_first(world: World) -> None:
    world.register(broker(cluster="c"))
    world.register(broker(cluster="d"))
    assert world.table.cluster_table().cluster_addr_table == {"d": ["broker-a"]}
    assert world.table.names_in("c") == ()


# Topics by registration


def test_register_updates_topics_only_with_a_new_data_version(world: World) -> None:
    world.register(broker(A, topic("T", queues=4), "U"))
    world.register(broker(A, topic("T", queues=8), "U"))
    assert world.route().queue_datas[0].read_queue_nums == 4
    world.register(broker(A, topic("T", queues=8), "U", counter=2))
    assert world.route().queue_datas[0].read_queue_nums == 8


def test_register_adds_a_missing_topic_at_any_data_version(world: World) -> None:
    world.register(broker(A, "T", "U"))
    world.table.topics.drop_topic("T")
    world.register(broker(A, "T", "U"))
    assert world.route("T").queue_datas


def test_register_keeps_omitted_topics(world: World) -> None:
    world.register(broker(A, "T", "U"))
    world.register(broker(A, "U", "V", counter=2))
    assert set(world.table.topics.names()) == {"T", "U", "V"}


def test_register_drops_omitted_topics_if_configured(world: World) -> None:
    world.register(broker(B, "T", "W", name="broker-b"))
    world.register(broker(A, "T", "U"))
    world.register(broker(A, "U", "V", counter=2), drops_omitted=True)
    assert set(world.table.topics.names_of(["broker-a"])) == {"U", "V"}
    assert world.route("T").queue_datas[0].broker_name == "broker-b"


def test_wiped_permission_lasts_until_the_data_version_changes(world: World) -> None:
    world.register(broker())
    assert world.table.topics.wipe_write("broker-a") == 2
    world.register(broker())
    assert world.perms() == [4]
    world.register(broker(counter=2))
    assert world.perms() == [6]


def test_register_of_a_new_master_restores_wiped_permissions(world: World) -> None:
    world.register(broker(A))
    world.table.topics.wipe_write("broker-a")
    world.register(broker(B))
    assert world.perms() == [6]


def test_register_of_a_java_4_slave_adds_no_topics(world: World) -> None:
    world.register(broker(B, broker_id=1))
    assert world.table.route_of("T") is None
    assert world.addresses() == {1: B}


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6)])
def test_register_of_slaves_without_a_master_uses_topics_of_the_lowest(
    world: World, acting: bool, perm: int
) -> None:
    world.register(broker(B, broker_id=1, acting_master=acting))
    world.register(broker(C, "V", "W", broker_id=2, acting_master=acting))
    assert world.perms() == [perm]
    assert world.table.route_of("V") is None


def test_register_of_a_slave_with_a_master_adds_no_topics(world: World) -> None:
    world.register(broker(A, acting_master=True))
    world.register(broker(B, "V", "W", broker_id=1, acting_master=True))
    assert world.table.route_of("V") is None
    assert world.perms() == [6]


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6)])
def test_route_of_an_acting_group_without_its_master_is_read_only(
    world: World, acting: bool, perm: int
) -> None:
    world.register(broker(A, acting_master=acting))
    world.register(broker(B, broker_id=1, acting_master=acting))
    world.table.unregister("broker-a", A)
    assert world.perms() == [perm]
    world.register(broker(A, acting_master=acting))
    assert world.perms() == [6]


def test_unregister_of_a_slave_keeps_write_permission(world: World) -> None:
    world.register(broker(A, acting_master=True))
    world.register(broker(B, broker_id=1, acting_master=True))
    world.table.unregister("broker-a", B)
    assert world.perms() == [6]


def test_route_shows_the_acting_master_as_master_if_requested(world: World) -> None:
    world.register(broker(B, broker_id=1, acting_master=True))
    world.register(broker(C, broker_id=2, acting_master=True))

    def shown(name: str, *, wanted: bool = True) -> dict[int, str]:
        route = world.table.route_of(name, acting_master=wanted)
        assert route is not None
        return route.broker_datas[0].broker_addrs

    assert shown("T") == {0: B, 2: C}
    assert shown("T", wanted=False) == {1: B, 2: C}
    sync = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    world.register(broker(B, sync, "T", broker_id=1, acting_master=True, counter=2))
    assert shown(sync) == {1: B, 2: C}
    world.register(broker(A, acting_master=True))
    assert shown("T") == {0: A, 1: B, 2: C}


# Limits


def test_register_at_a_full_table_is_rejected_and_changes_nothing() -> None:
    table = RouteTable(TopicTable(topics_max=3), members_max=1)
    table.register(broker(A), connection=1, now_s=0)
    with pytest.raises(TableFull, match="1 brokers are registered, which is the limit"):
        table.register(broker(B, name="broker-b"), connection=1, now_s=0)
    with pytest.raises(TableFull, match="topics"):
        table.register(broker(A, "V", "W", counter=2), connection=1, now_s=0)
    assert not table.has_broker("broker-b")
    assert table.register(broker(A, "V", counter=2), connection=1, now_s=0) is Verdict.AGAIN
