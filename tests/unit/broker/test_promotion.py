"""Promotion and replacement of a broker in a master-slave group."""

import asyncio
from collections.abc import Callable

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import TRANSACTION_GROUP
from tianzhou.broker.replica.master_slave import MasterSlave, RoleChanges
from tianzhou.broker.replica.mode import NameServerReport
from tianzhou.broker.replica.role_change import RoleMachine
from tianzhou.broker.replica.roles import TRANSITIONS, Effect, Event, State
from tianzhou.broker.role import Role
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_epochs import epoch_of
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.errors import DiskFull
from tianzhou.testing.small_broker import ADDRESS, SmallBroker

SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)


def small_slave() -> SmallBroker:
    return SmallBroker(
        config=BrokerConfig(broker_id=1),
        mode=lambda config, store, clock: MasterSlave(config, SLAVE, store, clock),
    )


def roles_of(broker: SmallBroker) -> RoleChanges:
    promotion = broker.mode.promotion()
    assert isinstance(promotion, RoleChanges)
    return promotion


def report(
    *, seen: int = 0, epoch: int = 0, free_id: int = 3, master: str = "", ha: str = ""
) -> NameServerReport:
    return NameServerReport(seen, epoch, free_id, master, ha, greets=False)


def saved(broker: SmallBroker) -> GroupState:
    return state_table(broker.store.files, broker.store.paths.tables).load()


def test_claimed_epoch_seen_by_a_nameserver_is_saved_within_bounds() -> None:
    broker = small_slave()
    roles_of(broker).on_report(report(seen=7))
    assert saved(broker).epoch_seen == 7
    roles_of(broker).on_report(report(seen=2**52))
    assert saved(broker).epoch_seen == 7


def test_claimed_epoch_of_another_broker_is_not_used() -> None:
    broker = small_slave()
    slave = roles_of(broker)
    slave.claim(above=1)
    assert slave.claimed is not None
    assert slave.announcement() == (2, slave.claimed.token, True, True)
    with pytest.raises(RequestRejected, match="already being promoted"):
        slave.claim(above=1)
    slave.on_report(report(epoch=1))  # the old master, which is about to be replaced
    assert slave.machine.state is State.PROMOTING
    slave.on_report(report(epoch=2))
    assert slave.machine.state is State.SLAVE
    with pytest.raises(RequestRejected, match="promoted at the same time"):
        slave.promote()
    assert (broker.role_state.role, slave.announcement().token) == (Role.SLAVE, "")
    assert broker.nameservers.wakes == 1, "a NameServer that saw the claim no longer lists it"


def test_claimed_epoch_is_not_used_once_a_later_one_is_known() -> None:
    slave = roles_of(small_slave())
    slave.claim(above=1)
    slave.on_report(report(seen=3))
    with pytest.raises(RequestRejected, match="promoted at the same time"):
        slave.promote()
    slave.claim()
    assert slave.claimed is not None
    assert slave.claimed.epoch == 4


def test_promoted_slave_accepts_messages_and_saves_its_role_and_epoch() -> None:
    broker = small_slave()
    slave = roles_of(broker)
    slave.claim(above=4)
    assert slave.promote() == 5
    assert slave.machine.state is State.MASTER
    assert (broker.role_state.is_master, broker.role_state.epoch) == (True, 5)
    assert (saved(broker).role, saved(broker).marks[-1].epoch) == ("MASTER", 5)
    assert broker.send("orders").code == 0
    with pytest.raises(RequestRejected, match="is the master already"):
        slave.claim()


def test_slave_does_not_step_down() -> None:
    with pytest.raises(RequestRejected, match="is a slave already"):
        roles_of(small_slave()).step_down(2, reason="a test")


def test_slave_does_not_follow_itself() -> None:
    """A NameServer may still list this broker as the master that it was."""
    broker = small_slave()
    slave = roles_of(broker)
    slave.on_report(report(master=ADDRESS, ha="10.0.0.1:10912"))
    assert broker.role_state.master_address == ""
    assert slave.known_master.ha_address == ""
    slave.on_report(report(master="10.0.0.7:10911", ha="10.0.0.7:10912"))
    assert broker.role_state.master_address == "10.0.0.7:10911"
    assert slave.known_master.ha_address == "10.0.0.7:10912"


CLAIM_WON = TRANSITIONS[State.PROMOTING][Event.CLAIM_WON].effects
STEP_DOWN = TRANSITIONS[State.MASTER][Event.STEP_DOWN].effects


@pytest.mark.parametrize("effect", CLAIM_WON, ids=lambda effect: effect.name)
def test_failed_promotion_leaves_a_slave_that_follows_and_can_be_promoted_again(
    effect: Effect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        broker = small_slave()
        slave = roles_of(broker)
        slave.join()
        slave.claim(above=1)
        with monkeypatch.context() as patch:
            patch.setitem(vars(slave.machine)["_execute"], effect, full_disk)
            with pytest.raises(DiskFull):
                slave.promote()
        assert (slave.machine.state, broker.role_state.role) == (State.SLAVE, Role.SLAVE)
        assert (slave.claimed, broker.store.is_writing) == (None, False)
        assert slave.following is not None
        assert (saved(broker).role, saved(broker).broker_id) == ("SLAVE", 1)
        history = epoch_of(saved(broker).marks)
        assert history <= broker.role_state.epoch, "the master would take it for a later one"
        assert broker.nameservers.wakes == 1, "NameServers that saw the claim list a master"
        slave.claim()
        is_used = CLAIM_WON.index(effect) > CLAIM_WON.index(Effect.SAVE_AS_MASTER)
        assert slave.promote() == (3 if is_used else 1), "the history of the log has its epoch"
        slave.stop_following()

    asyncio.run(body())


def test_failed_promotion_is_undone_once_the_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broker = small_slave()
        slave = roles_of(broker)
        slave.join()
        slave.claim(above=1)
        with monkeypatch.context() as patch:
            patch.setitem(vars(slave.machine)["_execute"], Effect.BEGIN_WRITING, full_disk)
            patch.setitem(vars(slave.machine)["_execute"], Effect.SAVE_AS_SLAVE, full_disk)
            with pytest.raises(DiskFull):
                slave.promote()
        assert (slave.machine.state, slave.claimed) == (State.PROMOTING, None)
        with pytest.raises(RequestRejected, match="already being promoted"):
            slave.claim()
        slave.retry()
        assert slave.machine.state is State.SLAVE
        assert slave.following is not None
        slave.stop_following()

    asyncio.run(body())


def test_failed_promotion_keeps_the_offsets_that_consumers_committed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        broker = small_slave()
        slave, offsets = roles_of(broker), broker.slices.groups.tables.offsets
        slave.join()
        monkeypatch.setattr(broker.store, "max_offset", end_of_any_queue)
        offsets.put("stock", "orders", 0, 7)
        offsets.put("stock", "orders", 1, 0)
        offsets.put(TRANSACTION_GROUP, "halves", 0, 5)
        slave.claim(above=1)
        with monkeypatch.context() as patch:
            patch.setitem(vars(slave.machine)["_execute"], Effect.FLUSH_LOG, full_disk)
            with pytest.raises(DiskFull):
                slave.promote()
        assert offsets.accepted is not None
        assert offsets.accepted.ahead() == [("orders@stock", 0, 7)]
        assert offsets.of("stock", "orders") == {0: 7, 1: 0}
        assert offsets.of(TRANSACTION_GROUP, "halves") == {0: 5}, "progress is not given away"
        slave.stop_following()

    asyncio.run(body())


def end_of_any_queue(_: object) -> int:
    return 10


def full_disk() -> None:
    raise DiskFull("no space left")


class Crash(Exception):
    """The process dies here."""


def crash_after(machine: RoleMachine, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine execute this many effects, and no more."""
    left = iter(range(count))

    def guarded(act: Callable[[], None]) -> Callable[[], None]:
        def execute() -> None:
            if next(left, None) is None:
                raise Crash
            act()

        return execute

    acts = {effect: guarded(act) for effect, act in machine._execute.items()}
    monkeypatch.setattr(machine, "_execute", acts)


@pytest.mark.parametrize("count", range(len(CLAIM_WON)))
def test_promotion_that_crashes_restarts_in_the_saved_role(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = small_slave()
    slave = roles_of(broker)
    slave.claim(above=1)
    crash_after(slave.machine, count, monkeypatch)
    with pytest.raises(Crash):
        slave.machine.handle(Event.CLAIM_WON)
    broker.kill()
    is_saved = Effect.SAVE_AS_MASTER in CLAIM_WON[:count]
    state = State.MASTER if is_saved else State.SLAVE
    assert roles_of(broker).machine.state is state
    assert broker.store.is_writing == broker.role_state.is_master == is_saved
    assert broker.role_state.epoch == (2 if is_saved else 0)


@pytest.mark.parametrize("count", range(len(STEP_DOWN)))
def test_step_down_that_crashes_restarts_in_the_saved_role(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = SmallBroker(
        mode=lambda config, store, clock: MasterSlave(config, ReplicationConfig(), store, clock)
    )
    broker.send("orders", b"before")
    master = roles_of(broker)
    crash_after(master.machine, count, monkeypatch)
    with pytest.raises(Crash):
        master.step_down(2, reason="a test")
    broker.kill()
    is_saved = Effect.SAVE_AS_SLAVE in STEP_DOWN[:count]
    assert roles_of(broker).machine.state is (State.SLAVE if is_saved else State.MASTER)
    assert broker.store.is_writing == broker.role_state.is_master == (not is_saved)
    assert broker.role_state.broker_id == (2 if is_saved else 0)
    assert [bytes(message.body) for message in broker.messages("orders")] == [b"before"]
