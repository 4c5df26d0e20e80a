"""What a broker is in its group: the master, who takes messages, or a slave, who has copies.

The role may change while the broker runs. Whoever decides that (an operator, a Raft group) calls
`Broker.take_role`; everybody else asks here.
"""

import enum
from collections.abc import Callable
from typing import Final

from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import MASTER_ID

MASTER_ADDRESS: Final = "masterAddr"
"""Header field of a response that names the broker to ask instead."""


class Role(enum.Enum):
    MASTER = "MASTER"
    """Takes messages, delivers delayed and timed ones, asks about transactions."""
    SLAVE = "SLAVE"
    """Follows a master: refuses messages, serves pulls and offsets."""


class RoleState:
    """Owner: the broker loop; only `Broker.take_role` changes it.

    Invariant: a master has id 0, a slave has another
    """

    def __init__(self, name: str, role: Role, broker_id: int, epoch: int = 0) -> None:
        self._name = name
        self.role = role
        self.broker_id = broker_id
        self.epoch = epoch
        """Counts the masters of a group; who has the highest is right."""
        self.master_address = ""
        """Where the master serves clients, as far as a slave knows."""
        self.master_name = ""
        """The name of the leader within its Raft group; empty in a group without Raft."""
        self.reads_refused = False
        """A slave that is only there to hold copies."""
        self.changed: list[Callable[[], None]] = []
        """Called after every change."""

    @property
    def is_master(self) -> bool:
        return self.role is Role.MASTER

    def is_replica(self) -> bool:
        """Whether another broker is the master; a method, for those who ask later."""
        return not self.is_master

    def take(self, role: Role, broker_id: int, epoch: int) -> None:
        assert (role is Role.MASTER) == (broker_id == MASTER_ID), f"{role} with id {broker_id}"
        assert epoch >= self.epoch, f"epoch {epoch} comes before {self.epoch}"
        self.role, self.broker_id, self.epoch = role, broker_id, epoch
        if role is Role.MASTER:
            self.master_address = self.master_name = ""
        for tell in self.changed:
            tell()

    def check_read(self) -> None:
        if self.reads_refused and not self.is_master:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"broker {self._name} with id {self.broker_id} is a slave and slave_read is off",
            )

    def check_write(self) -> None:
        self.check_master("sends")

    def check_master(self, what: str) -> None:
        """Raise RequestRejected, with the address to ask, unless this broker is the master."""
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
