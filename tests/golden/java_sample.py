"""The store directories in `samples/`: how to unpack and open them, and what was sent to them."""

import json
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tianzhou.base.kinds import QueueKey
from tianzhou.record.message import MessageView, decode_all
from tianzhou.record.walk import Stop, walk
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

SAMPLES: Final = Path(__file__).parent / "samples"
KINDS: Final = ("terminated", "killed")

# As the Java broker was configured. It wrote no checksum of whole records.
CONFIG: Final = StoreConfig(
    commit_log_file_bytes=65536,
    consume_queue_file_bytes=400,
    index_slots=1000,
    index_entries=4000,
    record_crc=False,
    retention_hours=24 * 365 * 10,
)


class Sent(NamedTuple):
    """One message, as its producer recorded it."""

    kind: str
    topic: str
    tags: str
    keys: Sequence[str]
    body_size: int
    body_crc: int
    unique_id: str
    offset_id: str | None
    queue_id: int
    queue_offset: int


def unpack(kind: str, into: Path) -> Path:
    """Unpack the store directory that the Java broker left."""
    with tarfile.open(SAMPLES / f"java-4.9.8-{kind}.tar.gz") as archive:
        # Python 3.11.3 and older have no filters, and 3.12 warns of archives without one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
    return into / "store"


def open_store(
    root: Path, *, clock: ManualClock | None = None, rebuild: bool = False
) -> MessageStore:
    return MessageStore(
        RealFiles(), str(root), CONFIG, clock or ManualClock(1_800_000_000_000), rebuild=rebuild
    )


def sent(kind: str) -> list[Sent]:
    lines = (SAMPLES / f"java-4.9.8-{kind}.expected.jsonl").read_text().splitlines()
    seen_of_batch: defaultdict[str, int] = defaultdict(int)
    found: list[Sent] = []
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        # The response to a batch lists the ids of all its messages, and the offset of the first.
        rank = 0
        if row["kind"] == "batch":
            rank = seen_of_batch[row["msgId"]]
            seen_of_batch[row["msgId"]] += 1
        offset_ids = row["offsetMsgId"]
        found.append(
            Sent(
                row["kind"],
                row["topic"],
                row["tags"],
                (row["keys"] or "").split(),
                row["bodyBytes"],
                row["bodyCrc32"],
                row["msgId"].split(",")[rank],
                offset_ids.split(",")[rank] if offset_ids else None,
                row["queueId"],
                row["queueOffset"] + rank,
            )
        )
    return found


def records_of(root: Path) -> Iterator[MessageView]:
    """Every record of the log, read directly from Java's files."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        found = walk(data, 0, len(data))
        assert found.stop in (Stop.END, Stop.BLANK)
        yield from (MessageView(data, start) for start in found.starts)


def read_queue(store: MessageStore, key: QueueKey) -> list[MessageView]:
    """Every message of a queue."""
    messages: list[MessageView] = []
    at = store.min_offset(key)
    while at < store.max_offset(key):
        with store.read(key, at) as result:
            for span in result.spans:
                messages += decode_all(bytes(span))
            assert result.next_offset > at
            at = result.next_offset
    return messages


def tree(root: Path, *parts: str) -> dict[str, bytes]:
    """Path to bytes of every file below these directories."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for part in parts
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }
