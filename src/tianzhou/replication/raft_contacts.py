"""The contacts of a member: which members there are, what they are, and where they listen."""

import logging
from collections.abc import Callable
from typing import Final

from tianzhou.base.errors import ProtocolError, UsageError
from tianzhou.raft import membership
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import Append, Install, Kind, Message, NodeId
from tianzhou.raft.node import Node
from tianzhou.replication.raft_peers import Greeting, MemberKind, Peers
from tianzhou.replication.raft_settings import RaftSettings, peers_of

log: Final = logging.getLogger("tianzhou.raft")


class Contacts:
    """Keeps the connections of a member in agreement with the membership. Owner: the event loop."""

    def __init__(
        self,
        settings: RaftSettings,
        node: Node,
        greeting: Greeting,
        *,
        on_message: Callable[[Message], None],
        on_lost: Callable[[NodeId], None],
        check_mark: Callable[[bytes], object],
    ) -> None:
        """`check_mark` raises ProtocolError if this member cannot begin with a mark."""
        self._settings = settings
        self._node = node
        self._given = peers_of(settings.raft_peers)
        self._met: tuple[Members, frozenset[NodeId]] | None = None
        self.peers = Peers(
            greeting, self._received, on_lost, self._kind_of, secret=settings.raft_secret
        )
        self._on_message = on_message
        self._check_mark = check_mark

    def listen(self) -> None:
        host, _, port = self._given[self._node.id].rpartition(":")
        self.peers.listen(host.strip("[]"), int(port))
        self.meet()

    def meet(self) -> None:
        """Connect to all current members, and to removed ones that must still learn of it.
        Addresses in this member's settings win: the route to a member may differ from here."""
        members = self._node.core.log.members.current
        met = members, members.everyone() | self._node.core.leading.peers.keys()
        if met != self._met:
            self._met, known = met, self.addresses()
            self.peers.reach({name: known[name] for name in met[1] if name in known})

    def addresses(self) -> dict[NodeId, str]:
        return peers_of(self._node.core.log.members.current.addresses) | self._given

    def _received(self, message: Message) -> None:
        try:
            self._check_content(message)
        except (UsageError, ProtocolError) as error:
            log.warning("raft.nonsense", extra={"peer": message.sender, "reason": str(error)})
            return
        self._on_message(message)

    def _check_content(self, message: Message) -> None:
        """Check the payload, which Raft itself does not read, before it becomes part of the log.
        Raises UsageError or ProtocolError."""
        if isinstance(message, Install):
            self._check_mark(message.mark)
            peers_of(membership.decode(message.members).addresses)
        elif isinstance(message, Append):
            for entry in message.entries:
                if entry.kind is Kind.MEMBERS:
                    peers_of(membership.decode(entry.data).addresses)

    def _kind_of(self, name: NodeId) -> MemberKind | None:
        """What a member is; None for others. A member that does not know the membership yet accepts
        all members from its settings."""
        log = self._node.core.log
        for _, members in reversed(log.members.rows()):
            if name in members.everyone():
                return MemberKind.WITNESS if name in members.witnesses else MemberKind.COPY
        if name in self._given and not log.commit:
            return MemberKind.WITNESS if name == self._settings.raft_witness else MemberKind.COPY
        return None
