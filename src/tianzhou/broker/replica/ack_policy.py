"""What a master's answers wait for: so many copies of the log. May change while it runs.

Whoever was answered got what was promised then; whoever waits gets what is promised now. What
readers have seen they go on seeing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.role import RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.durability import Durability
from tianzhou.replication.ha_master import HaMaster
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode


@dataclass(slots=True)
class AckPolicy:
    """Owner: the broker loop.

    Invariant: `durability` waits for `master` only while more than one copy is promised
    """

    store: MessageStore
    durability: Durability
    master: HaMaster
    settle: Callable[[], None]
    """Write what was gathered, and release answers that need wait no more."""
    copies: int = 1

    def begin(self, copies: int, timeout_s: float) -> None:
        """This broker is the master from now on, and all that its log holds is to stay."""
        self.master.begin()
        self._make(copies, timeout_s)

    def change(self, copies: int, timeout_s: float) -> None:
        """Slaves are greeted anew: they must know how to confirm, and what to promise if they are
        promoted. Until they are back, senders are told that they are missing."""
        if copies == self.copies:
            self.durability.replicas_timeout_s = timeout_s
            return
        self.settle()
        if copies > 1 and self.durability.replicas is not None:
            self._make(copies, timeout_s)
            self.master.acked()
        else:
            # Nobody was promised copies, or nobody is from now on: nothing so far waits for them.
            self.master.begin()
            self.settle()
            self._make(copies, timeout_s)
        self.master.drop_all()

    def _make(self, copies: int, timeout_s: float) -> None:
        self.copies, waits = copies, copies > 1
        self.master.needed = max(1, copies - 1)
        self.master.hurries = waits
        self.durability.replicas = self.master if waits else None
        self.durability.replicas_timeout_s = timeout_s
        self.store.visible_bound = self._visible if waits else None

    def end(self) -> None:
        """Somebody else is the master now."""
        self.durability.replicas = None
        self.store.visible_bound = None

    def _visible(self) -> PhysicalOffset:
        """What slaves confirmed. While there are too few of them senders are told so, and readers
        need not starve: it is as with asynchronous replication."""
        return self.store.log.end if self.master.missing() else self.master.replicated


def check_promises(
    role_state: RoleState, settings: ReplicationConfig, copies: int, *, least: int
) -> None:
    """Check whether this broker may wait for this number of copies from now on. Raises
    RequestRejected."""
    if not role_state.is_master:
        where = role_state.master_address or "which is away"
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"this broker is a slave: its master, {where}, says how many copies it waits for",
        )
    if settings.role is BrokerRole.ASYNC_MASTER:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            "this broker waits for no slave, however many copies are wanted; start it with "
            "brokerRole = SYNC_MASTER",
        )
    if copies < least:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"inSyncReplicas can't be lowered to {copies} while the broker runs; the least is "
            f"{least}: change it, or minInSyncReplicas, in the settings file and restart",
        )
