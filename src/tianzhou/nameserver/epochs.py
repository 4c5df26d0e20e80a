"""The latest epoch of each group of master and slaves, remembered beyond the life of its master.

A group has one master at a time, and each promotion counts its epoch up. If the latest master is
dead and forgotten by the routes, an earlier one that returns must not take messages again: those
who trusted the latest would lose what it confirmed. And an epoch that was used once must not be
given to a second master: two logs could not be told apart by it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tianzhou.nameserver.brokers import MASTER_ID, Registration
from tianzhou.wire.registration import EPOCH_MAX

GROUPS_MAX: Final = 10_000
"""As many as may live at a time. Beyond it the one that was heard of least lately is forgotten."""
FIRST: Final = 1
"""The epoch of a master that nobody promoted. Empty directories begin with it again and again, so
it says nothing about who is right."""


class Latest(NamedTuple):
    epoch: int
    token: str


class Epochs:
    """Owner: the event loop of the name server."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._latest: dict[str, Latest] = {}
        self._groups_max = groups_max
        self.changes = 0
        """Counts up when an epoch that is remembered changes."""

    def admits(self, wanted: Registration) -> bool:
        """Whether this may be the master of its group: no later one is known, nor another one of
        the same epoch."""
        latest = self._latest.get(wanted.broker_name)
        if latest is None or not _counts(wanted):
            return True
        epoch = wanted.data_version.state_version
        if epoch != latest.epoch:
            return epoch > latest.epoch
        return epoch == FIRST or wanted.epoch_token == latest.token

    def take(self, wanted: Registration) -> None:
        """Remember the epoch of a master that registered."""
        if not _counts(wanted):
            return
        latest = Latest(wanted.data_version.state_version, wanted.epoch_token)
        if self._latest.pop(wanted.broker_name, None) != latest:
            self.changes += 1
        self._latest[wanted.broker_name] = latest
        if len(self._latest) > self._groups_max:
            del self._latest[next(iter(self._latest))]

    def all(self) -> dict[str, Latest]:
        return dict(self._latest)

    def restore(self, latest: Mapping[str, Latest]) -> None:
        """Take over what an earlier process remembered, as far as it is valid and fits."""
        for name, one in list(latest.items())[-self._groups_max :]:
            if FIRST <= one.epoch <= EPOCH_MAX:
                self._latest[name] = one

    def of(self, broker_name: str) -> int:
        """The latest epoch of this group; 0 if none is known."""
        latest = self._latest.get(broker_name)
        return 0 if latest is None else latest.epoch


def _counts(wanted: Registration) -> bool:
    is_master = wanted.broker_id == MASTER_ID and bool(wanted.epoch_token)
    return is_master and FIRST <= wanted.data_version.state_version <= EPOCH_MAX
