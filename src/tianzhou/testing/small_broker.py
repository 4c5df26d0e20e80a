"""A whole broker without sockets: real parts, a real store on a simulated disk, a manual clock."""

from itertools import count
from typing import Final, NamedTuple, cast

from tianzhou.base.kinds import Bytes, QueueOffset, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.role_change import begin_as_master
from tianzhou.broker.role import Role, RoleState
from tianzhou.broker.wiring import Parts, assemble
from tianzhou.net.rpc import OnAnswer
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record import properties
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.message import MessageView, decode_all
from tianzhou.replication.durability import durability_of
from tianzhou.store.config import StoreConfig
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import decode_headers, encode_command
from tianzhou.wire.frame import FrameBatch, FrameBuffer
from tianzhou.wire.header import ONEWAY_FLAG, Header
from tianzhou.wire.names import DEFAULT_TOPIC, MASTER_ID

ROOT: Final = "data/store"
HOST: Final = encode_host(Host("10.0.0.1", 10911))
STORE: Final = StoreConfig(
    commit_log_file_bytes=1 << 20,
    consume_queue_file_bytes=20 * 512,
    index_slots=64,
    index_entries=1024,
    commit_log_preallocate_bytes=4096,
)


class Told(NamedTuple):
    """A request of the broker to a client."""

    code: int
    ext: dict[str, str]
    body: bytes
    on_answer: OnAnswer | None = None


class RecordingPeer:
    """A client's end of a connection, as the broker sees it. Records what it receives."""

    def __init__(self, address: str = "10.1.1.1", port: int = 4711) -> None:
        self.identity = ""
        self.remote = f"{address}:{port}"
        self.remote_host = encode_host(Host(address, port))
        self.local = "10.0.0.1:10911"
        self.is_open = True
        self.has_enough = self.is_leaving = False
        self.waiting_count = 0
        self.told: list[Told] = []
        self._sent = bytearray()

    def send(self, data: Bytes) -> None:
        self._sent += data

    def wait(self, count: int, size: int) -> None:
        self.waiting_count += count

    def waited(self, count: int, size: int) -> None:
        self.waiting_count -= count

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.told.append(Told(code, ext, body))

    def ask(
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, timeout_s: float
    ) -> None:
        assert timeout_s > 0
        self.told.append(Told(code, ext, body, on_answer))

    def close(self) -> None:
        self.is_open = False

    def answers(self) -> list[Header]:
        """Return the headers that were sent since the last call."""
        data, self._sent = bytes(self._sent), bytearray()
        return decode_headers(frames(data))

    def take_told(self) -> list[Told]:
        told, self.told = self.told, []
        return told


def frames(data: bytes) -> FrameBatch:
    buffer = FrameBuffer(max(4096, len(data)))
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    return buffer.take()


class SmallBroker:
    """A broker whose server loop is driven by the test."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        config: BrokerConfig | None = None,
        store_config: StoreConfig = STORE,
        clock: ManualClock | None = None,
    ) -> None:
        self.disk = disk or SimDisk()
        self.clock = clock or ManualClock()
        self.config = config or BrokerConfig()
        self._store_config = store_config
        self._opaque = count(1)
        self._open()

    def _open(self, role: Role = Role.MASTER) -> None:
        self.store = MessageStore(self.disk, ROOT, self._store_config, self.clock)
        store = self.store
        self.role_state = RoleState(self.config.name, role, MASTER_ID if role is Role.MASTER else 1)
        self.durability = durability_of(store)
        self.parts: Parts = assemble(
            self.config, store, self.clock,
            store_host=HOST, monotonic_s=self.clock.monotonic_s,
            role_state=self.role_state, durability=self.durability,
        )  # fmt: skip
        if role is Role.MASTER:
            begin_as_master(self.parts, store)

    def open_as_slave(self) -> None:
        """Start again after `stop`, with the same log, as a replica that no service runs on."""
        self._open(Role.SLAVE)

    # What the server does

    def received(self, peer: RecordingPeer, data: bytes, *, settle: bool = True) -> None:
        """Process the frames of one read; then end the round, unless more is read in it."""
        connection = cast("ServerConnection", peer)  # has every attribute that handlers use
        self.parts.requests.received(connection, frames(data))
        if settle:
            self.parts.writer.settle()

    def tick(self, *, flush: bool = True) -> None:
        """Run one tick; optionally flush before and after."""
        if flush:
            self.flush()
        for service in (*self.parts.services, *self.parts.watches):
            service.tick()
        self.parts.writer.tick()
        self.parts.writer.settle()
        if flush:
            self.flush()

    def flush(self) -> None:
        self.store.flush()
        self.parts.writer.settle()

    def run(self, *, seconds: float, step_ms: int = 100) -> None:
        for _ in range(round(seconds * 1000 / step_ms)):
            self.clock.advance(ms=step_ms)
            self.tick()

    def save_offsets(self) -> None:
        self.parts.offsets.save()

    def stop(self) -> None:
        self.flush()
        for service in self.parts.services:
            service.finish()
        self.parts.offsets.save()
        self.store.close()

    def restart(self) -> None:
        self.stop()
        self._open()

    def kill(self) -> None:
        """Kill and restart: written data stays, synced or not."""
        self.disk.kill()
        self._open()

    # What clients do

    def ask(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        peer: RecordingPeer | None = None,
        oneway: bool = False,
        version: int = 400,
    ) -> Header | None:
        """Send a request and return the response, if there is one already."""
        peer = peer or RecordingPeer()
        flag = ONEWAY_FLAG if oneway else 0
        header = Header(code=code, opaque=next(self._opaque), ext=ext, flag=flag, version=version)
        self.received(peer, encode_command(header, body))
        return next((a for a in peer.answers() if a.opaque == header.opaque), None)

    def send(
        self,
        topic: str,
        body: bytes = b"body",
        named: dict[str, str] | None = None,
        *,
        queue_id: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        peer: RecordingPeer | None = None,
    ) -> Header:
        """Send a message as a producer does and return the response, which must come."""
        text = properties.encode({"UNIQ_KEY": f"U{next(self._opaque):031X}"} | (named or {}))
        fields = SendMessageV2Request(
            producer_group="producers", topic=topic, default_topic=DEFAULT_TOPIC, queue_id=queue_id,
            sys_flag=sys_flag, born_timestamp_ms=self.clock.now_ms(), flag=0,
            properties=text.decode(), reconsume_times=reconsume_times,
        )  # fmt: skip
        peer = peer or RecordingPeer()
        code = RequestCode.SEND_MESSAGE_V2
        header = Header(code=code, opaque=next(self._opaque), ext=fields.to_ext(), version=400)
        self.received(peer, encode_command(header, body))
        (answer,) = peer.answers() or self._after_flush(peer)
        return answer

    def _after_flush(self, peer: RecordingPeer) -> list[Header]:
        self.flush()
        return peer.answers()

    def heartbeat(self, peer: RecordingPeer, client_id: str, *, producers: tuple[str, ...]) -> None:
        told = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": [],
        }
        answer = self.ask(RequestCode.HEART_BEAT, {}, fastjson.encode(told), peer=peer)
        assert answer is not None
        assert answer.code == 0

    # For assertions

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageView]:
        """Return all visible messages of a queue."""
        found: list[MessageView] = []
        key, offset = queue_key(topic, queue_id), QueueOffset(0)
        while offset < self.store.max_offset(key):
            with self.store.read(key, offset, ReadLimit(800, 1 << 26)) as read:
                found += [one for span in read.spans for one in decode_all(bytes(span))]
                offset = read.next_offset
        return found

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]
