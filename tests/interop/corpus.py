"""Messages as all kinds of producers send them, in a store of ours, and its expected content."""

import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from java_probe import Answers, Line

from tianzhou.base.clock import Clock
from tianzhou.base.java import key_hash
from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, build
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.message import MessageView
from tianzhou.store import index_file
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

ORDERS: Final = "interop_orders"
PAYMENTS: Final = "interop_payments"
RETRY: Final = "%RETRY%interop_group"
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
STORE_HOST: Final = encode_host(("127.0.0.1", 10911))
BORN_HOST: Final = encode_host(("127.0.0.1", 50123))
BORN_HOST_V6: Final = encode_host(("2001:db8::7", 50123))
ROUNDS: Final = 55


def config(*, record_crc: bool) -> StoreConfig:
    """Sizes so small that log, queues and index all need several files."""
    return StoreConfig(
        commit_log_file_bytes=65536,
        consume_queue_file_bytes=400,
        index_slots=1000,
        index_entries=250,
        record_crc=record_crc,
        retention_hours=24 * 365 * 10,
    )


def _properties(**named: str) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in named.items())


def _round(rank: int) -> Iterator[Entry]:
    born = 1_700_000_000_000 + rank

    def entry(queue: QueueKey, body: bytes, properties: bytes = b"", **more: Any) -> Entry:
        more = {"born_timestamp": born, "born_host": BORN_HOST} | more
        return Entry(queue, body, properties, **more)

    unique = f"7F0000010A1B18B4AAC2{rank:012X}"
    yield entry(
        queue_key(ORDERS, rank % 4),
        f"order {rank} 订单".encode() * (1 + rank * 3),
        _properties(
            MIN_OFFSET="0",
            TRACE_ON="true",
            MSG_REGION="DefaultRegion",
            UNIQ_KEY=unique,
            CLUSTER="DefaultCluster",
            TAGS="beijing" if rank % 3 else "上海",
            KEYS=f"order-{rank} customer-{rank % 7} 键{rank}",
            city=f"城市 {rank}",
        ),
        flag=rank,
    )
    yield entry(queue_key(ORDERS, 1), b"no properties at all")
    # A key without the last separator, as some clients send it.
    yield entry(queue_key(PAYMENTS, 0), b"$" * rank, b"TAGS\x01a\x02KEYS\x01pay-%d" % rank)
    if rank % 5 == 0:
        yield from _rare(rank, entry, unique)


def _rare(rank: int, entry: Any, unique: str) -> Iterator[Entry]:
    """Large, compressed, delayed and retried messages, IPv6 hosts, and parts of transactions."""
    pays = queue_key(PAYMENTS, 0)
    yield entry(pays, bytes(range(256)) * 60, _properties(UNIQ_KEY=f"{unique}B", WAIT="false"))
    yield entry(
        pays,
        zlib.compress(b"compressed" * 900, 5),
        _properties(KEYS=f"zip-{rank}"),
        sys_flag=flags.COMPRESSED,
    )
    yield entry(
        # Two hours: Java 4.9 delivers due messages, and these should stay.
        queue_key(SCHEDULE, 17),
        b"later",
        _properties(
            DELAY="18", REAL_TOPIC=ORDERS, REAL_QID="2", TAGS="beijing", KEYS=f"later-{rank}"
        ),
    )
    yield entry(
        queue_key(RETRY, 0),
        b"again",
        _properties(
            RETRY_TOPIC=ORDERS,
            ORIGIN_MESSAGE_ID="7F00000100002A9F0000000000000000",
            TAGS="beijing",
            KEYS=f"again-{rank}",
        ),
        reconsume_times=3,
    )
    yield entry(
        queue_key(ORDERS, 3),
        b"from afar",
        _properties(KEYS=f"v6-{rank}"),
        born_host=BORN_HOST_V6,
        sys_flag=flags.BORN_HOST_V6,
    )
    for kind, name in (
        (flags.TRANSACTION_PREPARED, "half"),
        (flags.TRANSACTION_COMMIT, "committed"),
        (flags.TRANSACTION_ROLLBACK, "rolled"),
    ):
        yield entry(
            queue_key(ORDERS, 0),
            name.encode(),
            _properties(KEYS=f"{name}-{rank}", TRAN_MSG="true"),
            sys_flag=kind,
            prepared_offset=rank,
        )


def now_clock() -> ManualClock:
    """A few minutes ago: Java's store times are later, and no delayed message is due."""
    return ManualClock(int(time.time() * 1000) - 600_000)


def open_store(
    root: Path, settings: StoreConfig, clock: Clock, *, rebuild: bool = False
) -> MessageStore:
    return MessageStore(RealFiles(), str(root), settings, clock, rebuild=rebuild)


def fill(store: MessageStore, clock: ManualClock, ranks: Iterable[int]) -> None:
    for rank in ranks:
        chunk = build(_round(rank), store_host=STORE_HOST, record_crc=store.config.record_crc)
        store.append(chunk)
        store.dispatch_all()
        clock.advance(ms=1_300)


STOPS: Final = ("closed", "crashed", "crashed after a checkpoint")


class Written(NamedTuple):
    content: "Content"
    java_keys_from: int
    """After a crash Java drops its newest index file and rebuilds it from where the queues were
    safe, no further back: it loses the keys of older messages, in its own directories too."""


def write_store(root: Path, settings: StoreConfig, clock: ManualClock, stop: str) -> Written:
    """Write a store of ours, and end it in one of the ways of STOPS."""
    store, checkpoint = open_store(root, settings, clock), 0
    fill(store, clock, range(ROUNDS // 2))
    if stop == "crashed after a checkpoint":
        store.checkpoint()
        checkpoint = store.log.end
    fill(store, clock, range(ROUNDS // 2, ROUNDS))
    content = Content.of(store)
    content.check_own_search(store)
    if stop == "closed":
        store.close()
    else:
        store.abandon()
    return Written(content, checkpoint)


# Content of a store


class Content(NamedTuple):
    lines: dict[int, Line]
    """Every message in a queue by its place in the log, described as the Java probe does."""
    keys: dict[tuple[str, str], list[int]]
    """Places of messages by topic and key or unique id. Read from the log and not from the index:
    these are the messages that a search must find."""

    @classmethod
    def of(cls, store: MessageStore) -> "Content":
        records = [
            record for queue in store.queues for record in _records_of_queue(store, queue.key)
        ]
        lines = {line["physicalOffset"]: line for line in map(described, records)}
        assert len(lines) == len(records)
        return cls(lines, _keys_of(store))

    def check(self, answers: Answers, *, keys_from: int = 0) -> None:
        """Check that Java found all these messages; by key, those from this place on."""
        found = {line["physicalOffset"]: line for line in answers.messages}
        assert found == self.lines
        assert len(answers.messages) == len(self.lines)
        for key, places in self.keys.items():
            # Java does not check whether a hit has the key or only its hash; its clients do.
            wanted = {place for place in places[-64:] if place >= keys_from}
            assert {line["physicalOffset"] for line in answers.found[key]} >= wanted, key

    def check_own_search(self, store: MessageStore) -> None:
        for (topic, key), places in self.keys.items():
            with store.find(topic, key) as result:
                views = [MessageView(bytes(span)) for span in result.spans]
            assert sorted(view.physical_offset for view in views) == places[-64:], key


def _records_of_queue(store: MessageStore, key: QueueKey) -> Iterator[bytes]:
    at = store.min_offset(key)
    while at < store.max_offset(key):
        with store.read(key, at, ReadLimit(count=1)) as result:
            (span,) = result.spans
            yield bytes(span)
            at = result.next_offset


def _views_of(store: MessageStore) -> Iterator[MessageView]:
    """Every record of the log, including invisible ones."""
    for segment in store.log.segments:
        at = segment.start
        while at < min(store.log.end, segment.start + store.log.file_bytes):
            with store.record_at(at) as result:
                if not result.spans:  # the rest of this file is blank
                    break
                view = MessageView(bytes(result.spans[0]))
            yield view
            at = PhysicalOffset(at + view.total_size)


def _keys_of(store: MessageStore) -> dict[tuple[str, str], list[int]]:
    places: dict[tuple[str, str], list[int]] = {}
    for view in _views_of(store):
        if view.sys_flag & flags.TRANSACTION_MASK != flags.TRANSACTION_ROLLBACK:
            for key in {*view.keys, *filter(None, [view.unique_id])}:
                places.setdefault((view.topic, key), []).append(view.physical_offset)
    return places


def files_below(root: Path, part: str) -> dict[str, bytes]:
    """The bytes of every file below this directory, by path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }


def index_entries(
    files: Iterable[bytes], settings: StoreConfig, content: Content
) -> list[tuple[int, int]]:
    """Hash and place of every entry, in order. Since 5.4 Java also has an entry for each tag, which
    is left out here: only its own search by tag uses it."""
    of_tags = {
        (key_hash(f"{line['topic']}#T#{line['tags']}"), offset)
        for offset, line in content.lines.items()
    }
    entries: list[tuple[int, int]] = []
    for data in files:
        *_, count = index_file.HEADER.unpack_from(data)
        at = index_file.file_bytes(settings.index_slots, 1)
        rows = data[at : at + (count - 1) * index_file.ENTRY.size]
        entries += [(hash_, offset) for hash_, offset, _, _ in index_file.ENTRY.iter_unpack(rows)]
    return [entry for entry in entries if entry not in of_tags]


def described(record: bytes) -> Line:
    view = MessageView(record)
    named = dict(view.properties)
    return {
        "topic": view.topic,
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "physicalOffset": view.physical_offset,
        "msgId": view.offset_id,
        "flag": view.flag,
        "sysFlag": view.sys_flag,
        "bornTimestamp": view.born_timestamp,
        "bornHost": _text(view.born_host),
        "storeTimestamp": view.store_timestamp,
        "storeHost": _text(view.store_host),
        "reconsumeTimes": view.reconsume_times,
        "preparedOffset": view.prepared_offset,
        "bodySize": len(view.body),
        "bodyCrc": zlib.crc32(view.body),
        "recordSize": len(record),
        "recordCrc": zlib.crc32(record),
        "tags": view.tags,
        "keys": named.get("KEYS"),
        "properties": named,
    }


def _text(host: Host) -> str:
    return f"{host.address} {host.port}"
