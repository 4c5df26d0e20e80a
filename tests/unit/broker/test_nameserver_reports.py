"""What a broker does with the responses of NameServers, and without them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica import registration as module
from tianzhou.broker.replica.master_slave import HUNG_S, MasterSlave
from tianzhou.broker.replica.registration import (
    CLAIMS,
    NameTaken,
    Registration,
)
from tianzhou.broker.role import Role
from tianzhou.net.nameserver_connections import NO_ANSWER, NameServerConnections
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_master import Standing
from tianzhou.store.errors import DiskFull
from tianzhou.testing.kit.patience import Patience
from tianzhou.testing.small_broker import ADDRESS, SmallBroker
from tianzhou.wire.codec import Header
from tianzhou.wire.registration import EPOCH, FREE_ID, NAME_TAKEN

FINE = Header(code=0, opaque=1)
REPLACED = Header(code=0, opaque=1, ext={EPOCH: "2", FREE_ID: "3"})
SLAVE = ReplicationConfig(role=BrokerRole.SLAVE)
SYNC = ReplicationConfig(role=BrokerRole.SYNC_MASTER)
WITHIN_S = 10.0


class Responses:
    """NameServers that respond as they are told."""

    def __init__(self, *told: Header | str) -> None:
        self.told = list(told)
        self.count = 0

    async def call(self, *_: object) -> Header | str:
        self.count += 1
        return self.told[min(self.count, len(self.told)) - 1]


def small_master() -> SmallBroker:
    return SmallBroker(mode=lambda config, store, clock: MasterSlave(config, SYNC, store, clock))


def registered(
    broker: SmallBroker, responses: Responses, monkeypatch: pytest.MonkeyPatch
) -> Registration:
    config = BrokerConfig(nameservers="10.0.0.9:9876")
    topics, permission = broker.slices.topics.topics, broker.slices.topics.permission
    made = Registration(
        config, topics, permission, broker.mode, address=ADDRESS, clock=broker.clock
    )
    monkeypatch.setattr(NameServerConnections, "call", responses.call)
    monkeypatch.setattr(broker.nameservers, "hear", made.hear)
    return made


def play(body: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(WITHIN_S):
            await body()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    patience = Patience(WITHIN_S)
    while not condition():
        assert not patience.is_over(), "it did not come about in time"
        await asyncio.sleep(0.01)


def test_replaced_master_steps_down_once_its_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registration must not end with the first report that could not be saved."""

    async def body() -> None:
        broker = small_master()
        responses = Responses(FINE, REPLACED)
        monkeypatch.setattr(module, "RETRY_S", 0.01)
        made = registered(broker, responses, monkeypatch)
        await made.start()
        mode = broker.mode
        assert isinstance(mode, MasterSlave)
        saved = mode.own.saved

        def full_disk(**_: object) -> None:
            raise DiskFull("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(saved, "update", full_disk)
            made.wake()
            await until(lambda: responses.count > 4)
            assert broker.role_state.role is Role.MASTER
        await until(lambda: broker.role_state.role is Role.SLAVE)
        assert broker.role_state.broker_id == 3
        mode.abort()
        made.abort()

    play(body)


def test_promotion_goes_on_if_a_report_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broker = small_master()
        made = registered(broker, Responses(FINE), monkeypatch)

        def full_disk(_: object) -> None:
            raise DiskFull("no space left")

        monkeypatch.setattr(broker.mode, "on_nameserver_report", full_disk)
        called = asyncio.Event()
        made.register_then(called.set)
        await called.wait()

    play(body)


def test_master_relies_on_its_slaves_once_a_nameserver_knows_no_later_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        broker = small_master()
        mode = broker.mode
        assert isinstance(mode, MasterSlave)
        responses = Responses(NO_ANSWER, NO_ANSWER, FINE, FINE, REPLACED)
        registered(broker, responses, monkeypatch)
        mode.master.events.left()
        assert mode.master.standing is Standing.ASKING
        await until(lambda: mode.master.standing is Standing.ALONE)
        mode.second()
        await until(lambda: responses.count == 2)
        assert mode.master.standing is Standing.ALONE
        mode.second()
        await until(lambda: mode.master.standing is Standing.SURE)
        mode.tick()
        assert mode.master.standing is Standing.SURE
        broker.clock.advance(seconds=HUNG_S + 1)
        mode.tick()
        assert mode.master.standing is Standing.ASKING, "it may have been replaced while it hung"
        await until(lambda: mode.master.standing is Standing.SURE)
        mode.master.events.left()
        await until(lambda: broker.role_state.role is Role.SLAVE)
        mode.abort()

    play(body)


def test_master_accepts_a_late_response_to_a_repeated_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A silent NameServer delays every response by more than the interval of the questions."""

    async def body() -> None:
        broker = small_master()
        mode = broker.mode
        assert isinstance(mode, MasterSlave)
        asked: list[Callable[[bool], None]] = []
        monkeypatch.setattr(broker.nameservers, "hear", asked.append)
        mode.master.events.left()
        asked.pop()(False)
        assert mode.master.standing is Standing.ALONE
        for _ in range(3):
            mode.second()
        first, second, _third = asked
        first(True)
        assert mode.master.standing is Standing.SURE
        second(False)
        assert mode.master.standing is Standing.SURE, "another NameServer has accepted it"
        mode.master.events.left()
        _third(True)
        assert mode.master.standing is Standing.ASKING, "a slave left after that question"
        mode.abort()

    play(body)


def test_registration_that_is_closed_does_not_register_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        broker = small_master()
        responses = Responses(FINE)
        made = registered(broker, responses, monkeypatch)
        await made.register()
        await made.close()
        count = responses.count
        heard: list[bool] = []
        made.hear(heard.append)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (responses.count, heard) == (count, [])

    play(body)


def test_master_that_is_closed_reports_no_slave_that_leaves() -> None:
    async def body() -> None:
        broker = small_master()
        mode = broker.mode
        assert isinstance(mode, MasterSlave)
        await mode.close()
        mode.master.events.left()
        assert mode.master.standing is Standing.SURE

    play(body)


def test_slave_whose_id_was_given_away_takes_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was down while a master stepped down, which got its id."""

    async def body() -> None:
        taken = Header(code=16, opaque=1, ext={NAME_TAKEN: "10.0.0.7:10911", FREE_ID: "4"})
        monkeypatch.setattr(module, "RETRY_S", 0.01)
        for was_member in (False, True):
            broker = SmallBroker(
                config=BrokerConfig(broker_id=1),
                mode=lambda config, store, clock: MasterSlave(config, SLAVE, store, clock),
            )
            mode = broker.mode
            assert isinstance(mode, MasterSlave)
            responses = Responses(*[taken] * (CLAIMS + 1), FINE if was_member else taken)
            made = registered(broker, responses, monkeypatch)
            if was_member:
                mode.own.saved.update(role=Role.SLAVE.value, broker_id=1)
                await made.claim_name()
                assert mode.own.saved.value.broker_id == 4
            else:
                with pytest.raises(NameTaken):
                    await made.claim_name()
            assert broker.role_state.broker_id == (4 if was_member else 1)

    play(body)
