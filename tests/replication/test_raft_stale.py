"""Members with their brokers in one process: a deposed leader that does not know it yet."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tianzhou.base.kinds import queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.raft import RaftMode
from tianzhou.broker.server import Broker
from tianzhou.cmd import raft_broker
from tianzhou.cmd.clock import SystemClock
from tianzhou.net.blocking import BlockingPeer
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import StoreConfig
from tianzhou.testing.chaos.processes import FILE_BYTES, HOST, spare_ports
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header

NAMES = ("n0", "n1", "n2")
WAIT_S = 30.0
SEND = {
    "a": "makers",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
}
Member = tuple[Broker, RaftMode]


async def until(condition: Callable[[], bool]) -> None:
    patience = Patience(WAIT_S)
    while not condition():
        assert not patience.is_over(), "the condition was not met in time"
        await asyncio.sleep(0.01)


async def send(member: Member, body: bytes) -> Header:
    """Send to this member's broker; returns the response."""

    def call() -> Header:
        with BlockingPeer(member[0].address, timeout_s=WAIT_S) as peer:
            return peer.call(RequestCode.SEND_MESSAGE_V2, SEND, body)[0]

    return await asyncio.to_thread(call)


async def leader_of(members: list[Member]) -> Member:
    await until(lambda: any(broker.role_state.is_master for broker, _ in members))
    return next(one for one in members if one[0].role_state.is_master)


def play(root: Path, scene: Callable[[list[Member]], Awaitable[None]]) -> None:
    async def run() -> None:
        first = spare_ports(3)
        peers = ";".join(f"{name}={HOST}:{first + rank}" for rank, name in enumerate(NAMES))
        members: list[Member] = []
        try:
            for name in NAMES:
                settings = RaftSettings(
                    raft_enabled=True,
                    raft_group="g",
                    raft_peers=peers,
                    raft_id=name,
                    raft_new=True,
                    raft_ack_timeout_ms=60_000,
                )
                config = BrokerConfig(host=HOST, port=0, vip_port=False)
                store = StoreConfig(
                    commit_log_file_bytes=FILE_BYTES, index_slots=100, index_entries=400
                )
                members.append(
                    await raft_broker.start(
                        settings, config, store, str(root / name), clock=SystemClock()
                    )
                )
            await scene(members)
        finally:
            for broker, _ in reversed(members):
                await broker.close()

    asyncio.run(run())


def test_send_to_a_deposed_leader_is_never_acknowledged(tmp_path: Path) -> None:
    """Not even when the group has committed the next leader's message at the same place."""

    async def scene(members: list[Member]) -> None:
        old = await leader_of(members)
        assert (await send(old, b"kept")).code == ResponseCode.SUCCESS
        old[1].group.peers.reach({})  # it receives from the others, but cannot send to them
        store = old[1].group.store
        end = store.log.end
        waits = asyncio.create_task(send(old, b"lost"))
        await until(lambda: store.flushed > end)
        old[0].slices.base.writer.settle()
        assert store.max_offset(queue_key("orders", 0)) == 1, (
            "the message is stored but not committed"
        )
        lost_end = store.log.end
        new = await leader_of([one for one in members if one is not old])
        assert (await send(new, b"instead" * 1000)).code == ResponseCode.SUCCESS
        old[1].group.peers.reach(old[1].group.contacts.addresses())
        await until(lambda: old[1].group.replicated > lost_end)
        answer = await waits
        # Not SERVICE_NOT_AVAILABLE, which means that it is certainly not stored.
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no longer the master" in (answer.remark or "")

    play(tmp_path, scene)
