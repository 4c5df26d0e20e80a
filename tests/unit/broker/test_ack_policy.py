"""How many replicas an acknowledgement needs, and which changes of that number are allowed."""

import pytest

from tianzhou.broker.alarms import Since
from tianzhou.broker.replica.ack_policy import ReplicaCount, check_replica_count
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.broker.role import Role, RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_epochs import first
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.small_broker import STORE

SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)
SYNC = ReplicationConfig(role=BrokerRole.SYNC_MASTER)
MASTER = RoleState("broker-a", Role.MASTER, 0, 1)


def count_of(settings: ReplicationConfig, state: GroupState) -> ReplicaCount:
    """The number of a broker that starts with this saved state."""
    store = MessageStore(SimDisk(), "data", STORE, ManualClock())
    state_table(store.files, store.paths.tables).save(state)
    return ReplicaCount(settings, SavedState(store))


def test_replica_count_below_the_minimum_is_rejected() -> None:
    check_replica_count(MASTER, SYNC, 2, least=2)
    check_replica_count(MASTER, SYNC, 1, least=1)
    with pytest.raises(
        RequestRejected, match="can't be lowered to 1 while the broker runs; the least is 2"
    ):
        check_replica_count(MASTER, SYNC, 1, least=2)


def test_replica_count_change_is_rejected_except_at_a_sync_master() -> None:
    slave = RoleState("broker-a", Role.SLAVE, 1, 1)
    with pytest.raises(RequestRejected, match="is a slave"):
        check_replica_count(slave, SYNC, 3, least=1)
    with pytest.raises(RequestRejected, match="SYNC_MASTER"):
        check_replica_count(MASTER, ReplicationConfig(), 3, least=1)


@pytest.mark.parametrize(
    ("copies", "copies_min", "is_alarmed"),
    [(1, 1, False), (2, 2, False), (2, 1, False), (1, 2, True)],
)
def test_promoted_slave_raises_an_alarm_only_if_replicas_were_lowered(
    copies: int, copies_min: int, is_alarmed: bool
) -> None:
    state = GroupState(role="MASTER", marks=first("aa"), copies=copies, copies_min=copies_min)
    found = count_of(SLAVE, state).alarms("broker-a", MASTER, Since(ManualClock()))
    assert [alarm.kind for alarm in found] == (["copies_lowered"] if is_alarmed else [])


def test_async_master_lets_promoted_slaves_wait_for_no_replica() -> None:
    """A slave of an asynchronous master that is promoted continues as its master did."""
    state = GroupState(role="MASTER", marks=first("aa"))
    for settings, least in ((ReplicationConfig(), 1), (SYNC, 2)):
        assert count_of(settings, state).lowest == least
