"""A whole broker without sockets: real parts, a real store on a simulated disk, a manual clock."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple, cast

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import Bytes, QueueOffset, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.metrics import Samples
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.role import RoleState
from tianzhou.broker.router import FrameRouter
from tianzhou.broker.wiring import Slices, attach, build, route
from tianzhou.net.rpc import OnAnswer
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record import properties
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.message import MessageView, decode_all
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import Durability
from tianzhou.store.config import StoreConfig
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import ONEWAY_FLAG, Header, decode_headers, encode_command
from tianzhou.wire.frame import FrameBatch, FrameBuffer
from tianzhou.wire.names import DEFAULT_TOPIC

ROOT: Final = "data/store"
ADDRESS: Final = "10.0.0.1:10911"
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
        self.waited_s = 0.0
        """How long the next frames have waited."""
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
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, *, timeout_s: float
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


MakeMode = Callable[[BrokerConfig, MessageStore, Clock], Mode]


def _standalone(config: BrokerConfig, store: MessageStore, _clock: Clock) -> Mode:
    return Standalone(config.name, store)


class RecordedRegistrations:
    """Counts the registrations that a mode requests; there are no NameServers."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def register_then(self, then: Callable[[], None]) -> None:
        then()

    def hear(self, then: Callable[[bool], None]) -> None:
        then(True)


class SmallBroker:
    """A broker whose server loop is driven by the test."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        config: BrokerConfig | None = None,
        store_config: StoreConfig = STORE,
        clock: ManualClock | None = None,
        mode: MakeMode | None = None,
        store_type: type[MessageStore] = MessageStore,
    ) -> None:
        """`mode` makes the mode of the broker, at every start; by default it is standalone."""
        self._store_type = store_type
        self.disk = disk or SimDisk()
        self.clock = clock or ManualClock()
        self.config = config or BrokerConfig()
        self._store_config = store_config
        self._opaque = count(1)
        self._make_mode = mode or _standalone
        self.nameservers = RecordedRegistrations()
        self._open()

    def _open(self) -> None:
        self.store = self._store_type(self.disk, ROOT, self._store_config, self.clock)
        self._build(self._make_mode(self.config, self.store, self.clock))

    def _build(self, mode: Mode) -> None:
        self.mode = mode
        self.slices: Slices = build(self.config, self.store, self.clock, mode, store_host=HOST)
        self.requests: FrameRouter = route(self.slices)
        attach(mode, self.slices, nameservers=self.nameservers, address=ADDRESS)

    @property
    def role_state(self) -> RoleState:
        return self.mode.role_state

    @property
    def durability(self) -> Durability:
        return self.mode.durability

    def metric(self, name: str) -> float:
        """The current value of a metric without labels, by its name without `tianzhou_`."""
        (metric,) = [metric for metric in self.slices.metrics if metric.name == name]
        samples = metric.read()
        assert isinstance(samples, Samples), f"{name} is not one number"
        ((_, value),) = samples.series
        return value

    def open_as_slave(self, kind: type[MasterSlave] = MasterSlave) -> None:
        """Start again after `stop`, with the same log, as a replica that no service runs on."""
        config = replace(self.config, broker_id=1)
        settings = ReplicationConfig(role=BrokerRole.SLAVE)
        self.store = MessageStore(self.disk, ROOT, self._store_config, self.clock)
        self._build(kind(config, settings, self.store, self.clock))

    # What the server does

    def received(self, peer: RecordingPeer, data: bytes, *, settle: bool = True) -> None:
        """Process the frames of one read; then end the round, unless more is read in it."""
        connection = cast("ServerConnection", peer)  # has every attribute that handlers use
        self.requests.received(connection, frames(data))
        if settle:
            self.slices.base.writer.settle()

    def tick(self, *, flush: bool = True) -> None:
        """Run one tick; optionally flush before and after."""
        if flush:
            self.flush()
        for service in (*self.slices.services, *self.slices.watches):
            service.tick()
        self.slices.base.writer.tick()
        self.slices.base.writer.settle()
        if flush:
            self.flush()

    def flush(self) -> None:
        self.store.flush()
        self.slices.base.writer.settle()

    def run(self, *, seconds: float, step_ms: int = 100) -> None:
        for _ in range(round(seconds * 1000 / step_ms)):
            self.clock.advance(ms=step_ms)
            self.tick()

    def save_offsets(self) -> None:
        self.slices.groups.tables.offsets.save()

    def stop(self) -> None:
        self.flush()
        for service in self.slices.services:
            service.finish()
        self.slices.groups.tables.offsets.save()
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
            producer_group="producers",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=self.clock.now_ms(),
            flag=0,
            properties=text.decode(),
            reconsume_times=reconsume_times,
        )
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
