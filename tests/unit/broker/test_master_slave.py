"""A broker in its group: whom it follows, and on which terms."""

from dataclasses import replace

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.master_slave import MasterSlave
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_epochs import first
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

CONFIG = BrokerConfig(broker_id=1)
SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)
LISTED = replace(SLAVE, ha_plain_peers="10.0.0.7")


def small_store() -> MessageStore:
    config = StoreConfig(
        commit_log_file_bytes=4096, consume_queue_file_bytes=200, reserve_bytes=4096,
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
    state_table(store).save(GroupState(role="SLAVE", broker_id=1, marks=first("aa")))
    assert "epochs" in slave_of(LISTED, store).why_not_plain("10.0.0.7")


def test_master_is_never_followed_plainly_if_it_registered_as_ours() -> None:
    slave = slave_of(LISTED, small_store())
    slave.heard("10.0.0.7:10911", "10.0.0.7:10912", greets=True)
    assert "registered" in slave.why_not_plain("10.0.0.7")
    slave.heard("10.0.0.7:10911", "10.0.0.7:10912")
    assert slave.why_not_plain("10.0.0.7") == ""
