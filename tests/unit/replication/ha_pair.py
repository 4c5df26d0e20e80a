"""The two sides of a connection, without anything between them."""

from dataclasses import dataclass, field
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.ha_epochs import Mark, Marks
from tianzhou.replication.ha_frames import Hello, Probe
from tianzhou.replication.ha_plain import PlainPeers
from tianzhou.replication.ha_session import Extent, MasterFacts, MasterSession, SlaveSession

FILE_BYTES: Final = 1000
HOST: Final = "127.0.0.1"
FIRST: Final[Marks] = (Mark(epoch=1, run=0, start=0, token="aa"),)


def facts(
    *,
    marks: Marks = FIRST,
    secret: str = "",
    admits_plain: bool = True,
    plain_copies: bool = False,
    frame_bytes: int = 400,
) -> MasterFacts:
    return MasterFacts(
        "DefaultCluster",
        "broker-a",
        marks,
        FILE_BYTES,
        confirm_at_once=True,
        confirm_flushed=False,
        copies=2,
        copies_min=1,
        secret=secret,
        plain_peers=PlainPeers.read(HOST if admits_plain and not secret else ""),
        plain_copies=plain_copies,
        plain_frame_bytes=100,
        frame_bytes=frame_bytes,
        heartbeat_s=5.0,
        silence_s=20.0,
    )


def hello(
    *,
    end: int = 0,
    marks: Marks = (),
    name: str = "broker-a",
    id: int = 1,  # noqa: A002
    probe: Probe | None = None,
) -> Hello:
    return Hello(
        cluster="DefaultCluster",
        name=name,
        id=id,
        end=end,
        marks=marks,
        probe=probe,
        nonce="slave-nonce",
    )


@dataclass
class FakeLog:
    """A log as far as the master's side looks at it."""

    min: int = 0
    end: int = 0
    known: set[Probe] = field(default_factory=set[Probe])

    def extent(self) -> Extent:
        return Extent(PhysicalOffset(self.min), PhysicalOffset(self.end))

    def session(self, told: MasterFacts, now_s: float = 0.0) -> MasterSession:
        return MasterSession(
            told,
            self.extent,
            lambda probe: probe in self.known,
            host=HOST,
            nonce="master-nonce",
            now_s=now_s,
        )


def slave_session(told: Hello | None, *, secret: str = "", now_s: float = 0.0) -> SlaveSession:
    return SlaveSession(told, secret=secret, heartbeat_s=5.0, silence_s=20.0, now_s=now_s)


def byte_at(offset: int) -> int:
    return offset * 7 % 251


def stream(master: MasterSession, now_s: float = 0.0) -> bytes:
    """Everything that the master would send now."""
    sent = b""
    while (wanted := master.next_range()) is not None:
        start, size = wanted
        data = bytes(byte_at(offset) for offset in range(start, start + size))
        sent += master.frame(data, now_s)
    return sent
