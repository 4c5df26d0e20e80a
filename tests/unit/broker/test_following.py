"""When a slave may follow a master that does not send Tianzhou's greeting."""

from dataclasses import replace

from tianzhou.broker.replica.ack_policy import ReplicaCount
from tianzhou.broker.replica.following import MasterWatch
from tianzhou.broker.replica.saved_state import SavedState
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_epochs import first
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.small_broker import STORE

SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)
LISTED = replace(SLAVE, ha_plain_peers="10.0.0.7")


def small_store() -> MessageStore:
    return MessageStore(SimDisk(), "data", STORE, ManualClock())


def watch(settings: ReplicationConfig, store: MessageStore) -> MasterWatch:
    saved = SavedState(store)
    return MasterWatch(ReplicaCount(settings, saved), saved)


def test_master_is_followed_without_a_greeting_only_if_listed() -> None:
    store = small_store()
    assert "not listed" in watch(SLAVE, store).why_not_plain("10.0.0.7")
    assert "not listed" in watch(LISTED, store).why_not_plain("10.0.0.8")
    assert watch(LISTED, store).why_not_plain("10.0.0.7") == ""
    with_secret = watch(replace(LISTED, ha_secret="s3"), store)
    assert "ha_secret" in with_secret.why_not_plain("10.0.0.7")


def test_master_is_never_followed_without_a_greeting_by_a_log_with_epochs() -> None:
    """Only Tianzhou writes epochs, so the master that the log came from sends a greeting."""
    store = small_store()
    state_table(store.files, store.paths.tables).save(
        GroupState(role="SLAVE", broker_id=1, marks=first("aa"))
    )
    assert "epochs" in watch(LISTED, store).why_not_plain("10.0.0.7")


def test_master_registered_as_tianzhou_is_never_followed_without_greeting() -> None:
    master = watch(LISTED, small_store())
    master.set_greeting(greets=True)
    assert "registered" in master.why_not_plain("10.0.0.7")
    master.set_greeting(greets=False)
    assert master.why_not_plain("10.0.0.7") == ""


def test_configured_address_of_the_master_takes_precedence() -> None:
    found = watch(SLAVE, small_store())
    assert found.set_ha_address("10.0.0.7:10912")
    assert not found.set_ha_address("10.0.0.7:10912")
    fixed = watch(replace(SLAVE, ha_master_address="10.0.0.9:10912"), small_store())
    assert not fixed.set_ha_address("10.0.0.7:10912")
    assert fixed.ha_address == "10.0.0.9:10912"
