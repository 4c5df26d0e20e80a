"""Directories as a DLedger member of RocketMQ writes them, small enough for tests."""

import json
from pathlib import Path
from typing import Final

from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.store.dledger import HEADER, HEADER_BYTES, MAGIC_END, MAGIC_RECORD

FILE_BYTES: Final = 4096
KEY: Final = queue_key("orders", 0)
OTHER: Final = queue_key("orders", 1)


class LedgerWriter:
    """Appends entries to `dledger-n0/data` below a directory."""

    def __init__(self, root: Path, *, first_file: int = 0) -> None:
        self.root = root
        self._data = root / "dledger-n0" / "data"
        self._data.mkdir(parents=True)
        self.at = first_file
        self.index = 0
        self.places: list[int] = []

    def append(self, body: bytes, key: QueueKey = KEY, *, offset: int, magic: int = 1) -> int:
        chunk = build([Entry(key, body)], store_host=bytes(8), record_crc=False)
        size = HEADER_BYTES + len(chunk.data)
        room = FILE_BYTES - self.at % FILE_BYTES
        if size + 8 > room:
            self._write(MAGIC_END.to_bytes(4, "big", signed=True) + room.to_bytes(4, "big"), room)
        place = self.at
        where = PhysicalOffset(place + HEADER_BYTES)
        stamp(chunk, 0, 1, queue_offsets=[offset], physical_offset=where, store_timestamp=77)
        crcs = (0, 0, 0)
        header = HEADER.pack(magic, size, self.index, 1, place, *crcs, len(chunk.data))
        self._write(header + bytes(chunk.data), size)
        self.places.append(place)
        self.index += 1
        return place

    def _write(self, data: bytes, size: int) -> None:
        start = self.at // FILE_BYTES * FILE_BYTES
        path = self._data / f"{start:020d}"
        if not path.exists():
            path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as file:
            file.seek(self.at - start)
            file.write(data)
        self.at += size

    def damage(self, at: int, data: bytes = b"\xff") -> None:
        start = at // FILE_BYTES * FILE_BYTES
        with (self._data / f"{start:020d}").open("r+b") as file:
            file.seek(at - start)
            file.write(data)

    def commit(self, index: int) -> None:
        path = self.root / "dledger-n0" / "checkpoint"
        path.write_text(f"#time\nendIndex={self.index - 1}\ncommittedIndex={index}\n")

    def tables(self) -> None:
        config = self.root / "config"
        config.mkdir()
        topic = {"topicName": "orders", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        files = {
            "topics": {"topicConfigTable": {"orders": topic}},
            "subscriptionGroup": {"subscriptionGroupTable": {"g": {"groupName": "g"}}},
            "consumerOffset": {"offsetTable": {"orders@g": {"0": 3, "1": 1}}},
            "delayOffset": {"offsetTable": {"1": 0}},
        }
        for name, value in files.items():
            (config / f"{name}.json").write_text(json.dumps(value))


__all__ = ["FILE_BYTES", "KEY", "MAGIC_RECORD", "OTHER", "LedgerWriter"]
