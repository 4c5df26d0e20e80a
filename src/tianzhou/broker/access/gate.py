"""The access gate: whether a peer may send requests of a code.

Every request to a broker passes it, sends and pulls included, before its header is read further. It
admits everything today. Authentication sets `Peer.identity` once per connection; permissions then
replace `OpenAccess`. A row of sends from one connection is checked once, because all of them have
the same code and the same identity.
"""

from typing import Protocol

from tianzhou.net.rpc import Peer


class AccessGate(Protocol):
    def check(self, peer: Peer, code: int) -> None:
        """Raise RequestRejected unless the identity of the peer may send requests of this code."""
        ...


class OpenAccess:
    """Admits every request."""

    def check(self, peer: Peer, code: int) -> None:
        pass
