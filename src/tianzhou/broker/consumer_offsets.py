"""How far each group has come in each queue. In memory; saved every few seconds and at the end."""

from tianzhou.base.clock import Clock
from tianzhou.store.tables import Table
from tianzhou.wire.tables import ConsumerOffsetTable, DataVersion


class ConsumerOffsets:
    """Owner: the broker loop. Keys are `topic@group`, as in the file."""

    def __init__(self, table: Table[ConsumerOffsetTable], clock: Clock) -> None:
        self._table = table
        self._clock = clock
        stored = table.load()
        self._offsets = {key: dict(row) for key, row in stored.offset_table.items()}
        self._version = stored.data_version
        self._is_dirty = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        row = self._offsets.get(f"{topic}@{group}")
        return None if row is None else row.get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The last value counts, even a lower one: that is how offsets are reset."""
        self._offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._is_dirty = True

    def of(self, group: str, topic: str) -> dict[int, int]:
        return self._offsets.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        suffix = "@" + group
        return [key[: -len(suffix)] for key in self._offsets if key.endswith(suffix)]

    def groups_of(self, topic: str) -> list[str]:
        prefix = topic + "@"
        return [key[len(prefix) :] for key in self._offsets if key.startswith(prefix)]

    def remove_topic(self, topic: str) -> None:
        self._remove([key for key in self._offsets if key.startswith(topic + "@")])

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self._offsets if key.endswith("@" + group)])

    def clone(self, source: str, target: str, topic: str) -> None:
        for queue_id, offset in self.of(source, topic).items():
            self.put(target, topic, queue_id, offset)

    def table(self) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(data_version=self._version, offset_table=self._offsets)

    def save(self) -> None:
        """Write the table if anything changed."""
        if not self._is_dirty:
            return
        self._version = DataVersion(
            counter=self._version.counter + 1, timestamp=self._clock.now_ms()
        )
        self._table.save(self.table())
        # Not before: what could not be saved now is saved the next time.
        self._is_dirty = False

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            del self._offsets[key]
        self._is_dirty |= bool(keys)
