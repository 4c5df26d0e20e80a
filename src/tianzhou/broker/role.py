"""The role of a broker in its group: the master, which accepts messages, or a slave, which has a
copy of the master's log. And its permission, by which an operator drains it.

The role may change while the broker runs. The broker's mode (`replica/mode.py`) changes it; all
other code only reads it.
"""

import enum
from collections.abc import Callable
from typing import Final

from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import MASTER_ID, PERM_READ, PERM_WRITE

MASTER_ADDRESS: Final = "masterAddr"
"""Header field of a response that names the broker to send the request to instead."""


class Role(enum.Enum):
    MASTER = "MASTER"
    """Accepts messages, delivers delayed and timed ones, checks transactions."""
    SLAVE = "SLAVE"
    """Follows a master: rejects messages, serves pulls and offsets."""


class RoleState:
    """The role, id and epoch of a broker as all its parts see them.

    Owner: the broker loop; only the broker's mode changes it.

    Invariant: a master has id 0, a slave has another id
    """

    def __init__(
        self,
        name: str,
        role: Role,
        broker_id: int,
        epoch: int = 0,
        *,
        reads_refused: bool = False,
    ) -> None:
        """`reads_refused`: as a slave it only stores a replica and serves no pulls."""
        self._name = name
        self.role = role
        self.broker_id = broker_id
        self.epoch = epoch
        """Counts the masters of a group; the one with the highest epoch is the valid one."""
        self.master_address = ""
        """Where the master serves clients, as far as a slave knows."""
        self.master_name = ""
        """The name of the leader within its Raft group; empty in a group without Raft."""
        self.reads_refused = reads_refused
        self.changed: list[Callable[[], None]] = []
        """Called after every change of the role."""

    @property
    def is_master(self) -> bool:
        return self.role is Role.MASTER

    def is_replica(self) -> bool:
        """Whether another broker is the master; a method, to be passed as a callback."""
        return not self.is_master

    def take(self, role: Role, broker_id: int, epoch: int) -> None:
        """Change the role, and notify everything that depends on it."""
        assert (role is Role.MASTER) == (broker_id == MASTER_ID), f"{role} with id {broker_id}"
        assert epoch >= self.epoch, f"epoch {epoch} comes before {self.epoch}"
        self.role, self.broker_id, self.epoch = role, broker_id, epoch
        if role is Role.MASTER:
            self.master_address = self.master_name = ""
        for notify in self.changed:
            notify()

    def adopt_epoch(self, epoch: int) -> None:
        """Record the epoch of the log: that of the master whose log it is, or of an own start."""
        self.epoch = epoch

    def set_master(self, address: str, name: str = "") -> None:
        """Record where the master is; `name` is that of a Raft leader. The master itself has no
        other one to name."""
        if not self.is_master:
            self.master_address, self.master_name = address, name

    def check_read(self) -> None:
        if self.reads_refused and not self.is_master:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"broker {self._name} with id {self.broker_id} is a slave and slave_read is off",
            )

    def check_write(self) -> None:
        self.check_master("sends")

    def check_master(self, what: str) -> None:
        """Raise RequestRejected, with the master's address, unless this broker is the master."""
        if not self.is_master:
            address = self.master_address
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker {self._name} with id {self.broker_id} is a replica and does not execute "
                f"{what}; nothing was stored or changed; {self._where()}",
                {MASTER_ADDRESS: address} if address else {},
            )

    def _where(self) -> str:
        if not self.master_address:
            return "no master is known; retry after one is elected or promoted"
        if self.master_name:
            return f"ask the leader {self.master_name} at {self.master_address}"
        return f"ask the master at {self.master_address}"


class Permission:
    """Owner: the broker loop."""

    def __init__(self, name: str, bits: int, role_state: RoleState) -> None:
        self._name = name
        self._role_state = role_state
        self.bits = bits
        self.is_readable = self._always_serves()
        """Whether `check_read` passes in every role; otherwise it has to be asked."""
        self.changed: list[Callable[[], None]] = []

    def set(self, bits: int) -> None:
        self.bits = bits
        self.is_readable = self._always_serves()
        for notify in self.changed:
            notify()

    def _always_serves(self) -> bool:
        return bool(self.bits & PERM_READ) and not self._role_state.reads_refused

    def check_write(self) -> None:
        self._role_state.check_write()
        if not self.bits & PERM_WRITE:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {self._name} accepts no messages now: it is being drained; "
                "send to another broker",
            )

    def check_read(self) -> None:
        self._role_state.check_read()
        if not self.bits & PERM_READ:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {self._name} currently delivers no messages",
                {"forbiddenType": "1"},
            )
