"""What a NameServer remembers across restarts."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from registering import A, B, broker

from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.epochs import GROUPS_MAX, Epochs, Latest
from tianzhou.nameserver.memory import NAME, Memory
from tianzhou.nameserver.missing import BROKERS_MAX, MissingBrokers
from tianzhou.nameserver.server import NameServer
from tianzhou.store.files import RealFiles
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire.nameserver_bodies import MissingBroker


def gone(name: str, since_ms: int = 1) -> MissingBroker:
    return MissingBroker(
        address="10.0.0.1:1",
        broker_id=0,
        cluster="c",
        groups=("readers",),
        name=name,
        reason="expired",
        since_ms=since_ms,
    )


class Remembering:
    """A NameServer's memory over a directory."""

    def __init__(self, directory: Path) -> None:
        self.missing, self.epochs = MissingBrokers(), Epochs()
        self.memory = Memory(RealFiles(), str(directory), missing=self.missing, epochs=self.epochs)
        self.memory.load()

    def remember(self, *brokers: MissingBroker, **epochs: Latest) -> None:
        self.missing.restore(brokers)
        self.epochs.restore(epochs)
        self.missing.changes += 1

    async def save(self) -> None:
        self.memory.save_soon()
        await self.memory.close()


def test_memory_survives_a_restart(tmp_path: Path) -> None:
    first = Remembering(tmp_path / "new")
    first.remember(gone("a"), gone("b", 2), broker=Latest(7, "token"))
    asyncio.run(first.save())
    again = Remembering(tmp_path / "new")
    assert list(again.missing.all()) == [gone("a"), gone("b", 2)]
    assert again.epochs.all() == {"broker": Latest(7, "token")}


def test_memory_without_changes_is_not_written(tmp_path: Path) -> None:
    asyncio.run(Remembering(tmp_path).save())
    assert not list(tmp_path.iterdir())


def test_memory_writes_changes_that_arrive_during_a_save(tmp_path: Path) -> None:
    async def both() -> None:
        one = Remembering(tmp_path)
        one.remember(gone("a"))
        one.memory.save_soon()
        await asyncio.sleep(0)
        one.remember(gone("b", 2))
        one.memory.save_soon()
        await one.memory.close()

    asyncio.run(both())
    assert [row.name for row in Remembering(tmp_path).missing.all()] == ["a", "b"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\x00", b"[" * 100_000, b'{"missing": 5}', b'{"epochs": {"a": 1}}']
)
def test_damaged_memory_is_set_aside_with_a_warning(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        one = Remembering(tmp_path)
    assert [record.message for record in caplog.records] == ["memory.damaged"]
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == data
    one.remember(gone("a"))
    asyncio.run(one.save())
    assert len(Remembering(tmp_path).missing) == 1


def test_memory_loaded_from_a_file_is_bounded(tmp_path: Path) -> None:
    rows = [gone(f"b{number}", number) for number in range(BROKERS_MAX + 1)]
    long = msgspec.structs.replace(gone("long", 10**6), groups=("g",) * 1000)
    epochs = {f"g{number}": [2, "t"] for number in range(GROUPS_MAX + 1)} | {"bad": [-1, "t"]}
    found = {"missing": msgspec.to_builtins([*rows, long]), "epochs": epochs}
    (tmp_path / NAME).write_text(json.dumps(found))
    one = Remembering(tmp_path)
    assert len(one.missing) == BROKERS_MAX
    assert max(len(row.groups) for row in one.missing.all()) == 100
    assert len(one.epochs.all()) <= GROUPS_MAX
    assert one.epochs.of("bad") == 0


def test_memory_that_cannot_be_saved_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Remembering(tmp_path / "file" / "below")
    (tmp_path / "file").write_bytes(b"")
    one.remember(gone("a"))
    with caplog.at_level(logging.WARNING):
        asyncio.run(one.save())
        asyncio.run(one.save())
    assert [record.message for record in caplog.records] == ["memory.not_saved"]
    (tmp_path / "file").unlink()
    asyncio.run(one.save())
    assert len(Remembering(tmp_path / "file" / "below").missing) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_broker_that_dies_with_its_nameserver_is_missing_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_killed: bool
) -> None:
    """A NameServer that is killed writes nothing any more; its file must have it already."""
    clock, config = ManualClock(), NameServerConfig(data_dir=str(tmp_path), listen_port=0)

    async def first_life() -> None:
        server = NameServer(config, clock)
        memory = server._memory
        assert memory is not None
        await server.start()
        for address, name in ((A, "broker-a"), (B, "broker-b")):
            register(server, broker(address, "orders", "%RETRY%billing", name=name))
        memory.save_soon()
        await memory.close()
        register(server, broker(B, "orders", "returns", name="broker-b", counter=2))
        memory.note_topics()
        memory.save_soon()
        await memory.close()
        if is_killed:
            server._memory = None  # it does not get to write again
        await server.close()

    async def second_life() -> NameServer:
        server = NameServer(config, clock)
        await server.start()
        register(server, broker(A, name="broker-a"))
        server.missing.registered("broker-a", 0, A, was_known=False, has_master=True)
        started_ms = clock.now_ms()
        server.scan()
        assert list(server.missing.all()) == [], "it has a minute to come back"
        clock.advance(seconds=61)
        server.scan()
        (row,) = server.missing.all()
        assert (row.name, row.reason, row.since_ms) == ("broker-b", "not_back", started_ms)
        assert [one.name for one in row.topics] == ["orders", "returns"]
        assert row.groups == ("billing",)
        await server.close()
        return server

    asyncio.run(first_life())
    asyncio.run(second_life())
    lines = [line for line in caplog.records if line.message == "broker.not_back"]
    assert [vars(line)["broker"] for line in lines] == ["broker-b"]
    assert [row.name for row in Remembering(tmp_path).missing.all()] == ["broker-b"]


def register(server: NameServer, wanted: Registration) -> None:
    server.routes.register(wanted, connection=object(), now_s=0.0)


def test_broker_that_unregistered_is_not_expected_after_a_restart(tmp_path: Path) -> None:
    async def life() -> None:
        server = NameServer(NameServerConfig(data_dir=str(tmp_path), listen_port=0), ManualClock())
        await server.start()
        register(server, broker(A))
        server.routes.unregister("broker-a", A)
        await server.close()

    asyncio.run(life())
    assert list(Remembering(tmp_path).missing.expected()) == []


def test_nameserver_without_a_directory_writes_nothing(tmp_path: Path) -> None:
    async def life(config: NameServerConfig) -> NameServer:
        server = NameServer(replace(config, listen_port=0), ManualClock())
        await server.start()
        server.missing.restore([gone("a")])
        server.missing.changes += 1
        await server.close()
        return server

    asyncio.run(life(NameServerConfig()))
    with_one = NameServerConfig(data_dir=str(tmp_path / "names"))
    asyncio.run(life(with_one))
    assert [path.name for path in tmp_path.rglob("*.json")] == [NAME]
