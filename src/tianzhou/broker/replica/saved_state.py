"""What a broker of a master-slave group saves about itself: its role, epochs and replica count."""

from typing import Any

import msgspec

from tianzhou.replication.ha_epochs import epoch_of
from tianzhou.replication.ha_state import GroupState, state_table
from tianzhou.store.store import MessageStore


class SavedState:
    """Owner: the broker loop.

    Invariant: `value` is what the file holds
    """

    def __init__(self, store: MessageStore) -> None:
        self._table = state_table(store.files, store.paths.tables)
        self.value: GroupState = self._table.load()

    def update(self, **changes: Any) -> None:
        """Change these fields; they are durable when this returns."""
        value = msgspec.structs.replace(self.value, **changes)
        if value != self.value:
            self._table.save(value)
            self.value = value

    @property
    def epoch(self) -> int:
        """The epoch of the last master in the history of the log."""
        return epoch_of(self.value.marks)
