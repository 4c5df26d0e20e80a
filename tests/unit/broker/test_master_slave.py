"""A broker in its group: whom it follows, and on which terms."""

from dataclasses import replace

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica import ack_policy as promise
from tianzhou.broker.replica import role_change as taking_over
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.role import Role, RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_epochs import first
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.registration import EPOCH_MAX

CONFIG = BrokerConfig(broker_id=1)
SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)
LISTED = replace(SLAVE, ha_plain_peers="10.0.0.7")


def small_store() -> MessageStore:
    config = StoreConfig(
        commit_log_file_bytes=4096, consume_queue_file_bytes=200, commit_log_preallocate_bytes=4096,
        index_slots=8, index_entries=40,
    )  # fmt: skip
    return MessageStore(SimDisk(), "data", config, ManualClock())


def slave_of(settings: ReplicationConfig, store: MessageStore) -> MasterSlave:
    return MasterSlave(CONFIG, settings, store, ManualClock())


def test_master_is_followed_plainly_only_if_its_address_is_listed() -> None:
    store = small_store()
    assert "not listed" in slave_of(SLAVE, store).why_not_plain("10.0.0.7")
    assert "not listed" in slave_of(LISTED, store).why_not_plain("10.0.0.8")
    assert slave_of(LISTED, store).why_not_plain("10.0.0.7") == ""
    with_secret = slave_of(replace(LISTED, ha_secret="s3"), store)
    assert "ha_secret" in with_secret.why_not_plain("10.0.0.7")


def test_master_is_never_followed_plainly_by_a_log_with_epochs() -> None:
    """Whoever wrote them, or the master that the log came from, speaks our protocol."""
    store = small_store()
    state_table(store.files, store.paths.tables).save(
        GroupState(role="SLAVE", broker_id=1, marks=first("aa"))
    )
    assert "epochs" in slave_of(LISTED, store).why_not_plain("10.0.0.7")


def test_master_is_never_followed_plainly_if_it_registered_as_ours() -> None:
    slave = slave_of(LISTED, small_store())
    slave.heard("10.0.0.7:10911", "10.0.0.7:10912", greets=True)
    assert "registered" in slave.why_not_plain("10.0.0.7")
    slave.heard("10.0.0.7:10911", "10.0.0.7:10912")
    assert slave.why_not_plain("10.0.0.7") == ""


@pytest.mark.parametrize(
    ("known", "above", "epoch"),
    [(0, 0, 1), (1, 0, 2), (1, 5, 6), (7, 5, 8), (1, 1_000_001, 1_000_002)],
)
def test_next_epoch_is_above_all_that_are_known(known: int, above: int, epoch: int) -> None:
    assert taking_over.next_epoch(known, above=above) == epoch


@pytest.mark.parametrize("above", [-1, 1_000_002, 2**53, 2**63 - 1])
def test_next_epoch_rejects_one_that_hardly_any_could_follow(above: int) -> None:
    with pytest.raises(
        RequestRejected, match=f"invalid aboveEpoch {above}; it must be from 0 to 1000001"
    ):
        taking_over.next_epoch(1, above=above)


def test_next_epoch_never_exceeds_what_can_be_stored() -> None:
    assert taking_over.next_epoch(EPOCH_MAX - 1) == EPOCH_MAX
    with pytest.raises(RequestRejected, match="is the highest possible"):
        taking_over.next_epoch(EPOCH_MAX)


def test_epoch_that_a_nameserver_knows_is_remembered_within_bounds() -> None:
    store = small_store()
    slave_of(SLAVE, store).heard_epoch(7)
    assert state_table(store.files, store.paths.tables).load().epoch_seen == 7
    slave_of(SLAVE, store).heard_epoch(2**52)
    assert state_table(store.files, store.paths.tables).load().epoch_seen == 7


def test_claimed_epoch_of_another_broker_is_not_used() -> None:
    slave, asked = slave_of(SLAVE, small_store()), list[str]()
    slave.ask_nameservers = lambda: asked.append("again")
    slave.claim(above=1)
    assert slave.claimed is not None
    assert (slave.claimed.epoch, slave.epoch_token) == (2, slave.claimed.token)
    with pytest.raises(RequestRejected, match="already being promoted"):
        slave.claim(above=1)
    slave.outdated(1, 3)  # the old master: it is about to be replaced
    assert slave.claimed is not None
    slave.outdated(2, 3)
    with pytest.raises(RequestRejected, match="promoted at the same time"):
        slave.promote()
    assert (slave.role_state.role, slave.epoch_token) == (Role.SLAVE, "")
    assert asked == ["again"], "a NameServer that saw the claim no longer lists the slave"


def test_claimed_epoch_is_not_used_once_a_later_one_is_known() -> None:
    slave = slave_of(SLAVE, small_store())
    slave.claim(above=1)
    slave.heard_epoch(3)
    with pytest.raises(RequestRejected, match="promoted at the same time"):
        slave.promote()
    slave.claim()
    assert slave.claimed is not None
    assert slave.claimed.epoch == 4


SYNC = ReplicationConfig(role=BrokerRole.SYNC_MASTER)


def test_copies_are_not_lowered_below_the_least() -> None:
    master = RoleState("broker-a", Role.MASTER, 0, 1)
    promise.check_promises(master, SYNC, 2, least=2)
    promise.check_promises(master, SYNC, 1, least=1)
    with pytest.raises(
        RequestRejected, match="can't be lowered to 1 while the broker runs; the least is 2"
    ):
        promise.check_promises(master, SYNC, 1, least=2)


def test_copies_are_changed_only_at_a_master_that_waits_for_slaves() -> None:
    slave = RoleState("broker-a", Role.SLAVE, 1, 1)
    with pytest.raises(RequestRejected, match="is a slave"):
        promise.check_promises(slave, SYNC, 3, least=1)
    master = RoleState("broker-a", Role.MASTER, 0, 1)
    with pytest.raises(RequestRejected, match="SYNC_MASTER"):
        promise.check_promises(master, ReplicationConfig(), 3, least=1)


def master_of(settings: ReplicationConfig, state: GroupState) -> MasterSlave:
    """One that was promoted, or began so."""
    store = small_store()
    state_table(store.files, store.paths.tables).save(state)
    return MasterSlave(BrokerConfig(broker_id=0), settings, store, ManualClock())


@pytest.mark.parametrize(
    ("copies", "copies_min", "is_alarmed"),
    [(1, 1, False), (2, 2, False), (2, 1, False), (1, 2, True)],
)
def test_promoted_slave_alarms_only_if_copies_were_lowered(
    copies: int, copies_min: int, is_alarmed: bool
) -> None:
    state = GroupState(role="MASTER", marks=first("aa"), copies=copies, copies_min=copies_min)
    alarms = [alarm.kind for alarm in master_of(SLAVE, state).alarms()]
    assert alarms == (["copies_lowered"] if is_alarmed else [])


def test_master_that_waits_for_no_slave_allows_its_followers_no_more() -> None:
    """A slave of an asynchronous master that is promoted goes on as its master did."""
    state = GroupState(role="MASTER", marks=first("aa"))
    for settings, least in ((ReplicationConfig(), 1), (SYNC, 2)):
        assert master_of(settings, state).copies_min == least
