"""The latest epoch of each master-slave group, which outlives its master.

A group has one master at a time, and each promotion increments its epoch. If the latest master is
dead and no longer in the routes, an earlier master that restarts must not accept messages again:
messages that the latest one acknowledged would be lost. And an epoch must never be given to a
second master, because it could then not distinguish two logs.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tianzhou.nameserver.brokers import Registration
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.registration import EPOCH_MAX

GROUPS_MAX: Final = 10_000
"""As many as may be registered at a time. Beyond that the least recently seen one is dropped."""
FIRST: Final = 1
"""The epoch of a master that was never promoted. Every empty directory starts with it, so it does
not show which master is current."""


class Latest(NamedTuple):
    epoch: int
    token: str


class Epochs:
    """The latest epoch of each group. Owner: the event loop of the NameServer."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._latest: dict[str, Latest] = {}
        self._groups_max = groups_max
        self.changes = 0
        """Incremented when a remembered epoch changes."""

    def admits(self, wanted: Registration) -> bool:
        """Whether this broker may be the master of its group: no later master is known, and no
        other one with the same epoch."""
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
        """Restore the epochs that an earlier process saved, as far as they are valid and fit."""
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
