"""A Raft group of real processes: a NameServer and members, killed, paused and started again."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tianzhou.base.errors import TianzhouError
from tianzhou.client import Message
from tianzhou.client.options import ProducerOptions
from tianzhou.client.sync import Admin, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.replication.raft_state import SLOT_BYTES, decode_slot
from tianzhou.store.detect import detect
from tianzhou.store.files import RealFiles
from tianzhou.store.verify import Directory, Findings
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.processes import HOST, SMALL_FILES, Server, spare_ports
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

TOPIC: Final = "raft-test"
QUEUES: Final = 4
GROUP: Final = "g"
WAIT_S: Final = 60.0
ADDED_MAX: Final = 2
"""So many members may be added to a group."""
PAUSE_S: Final = 0.02

SETTINGS: Final = {
    **SMALL_FILES,
    "flushConsumerOffsetInterval": "500",
}


OWN_DISK: Final = (
    "unshare",
    "-rm",
    "sh",
    "-c",
    'size=$0 at=$1; shift; mount -t tmpfs -o "$size" tmpfs "$at" && exec "$@"',
)
"""Mounts a small disk that only the command behind it sees, and becomes that command."""


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> float:
    """How long it took."""
    began, patience = time.monotonic(), Patience(timeout_s)
    while not condition():
        if patience.is_over():
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(PAUSE_S)
    return time.monotonic() - began


class Event(NamedTuple):
    """A line in the log of a member."""

    at_s: float
    what: str
    facts: dict[str, str]


class Member:
    """One member. The first start of a group says that it is new."""

    def __init__(
        self,
        name: str,
        directory: Path,
        nameserver: str,
        peers: str,
        port: int,
        *,
        disk_bytes: int = 0,
        files: int = 0,
        within: Sequence[str] = (),
        witness: str = "",
    ) -> None:
        """With `disk_bytes` it has a disk of its own, of that size, that goes when it ends; with
        `files` it may open only that many; `within` is a command that becomes the broker, as `env`
        does."""
        self.name = name
        self.address = f"{HOST}:{port}"
        self.raft_address = f"{HOST}:{port - 1}"
        self.directory = directory
        self.disk = directory / "disk"
        self.data = self.disk / "data"
        self.disk.mkdir(parents=True)
        conf = directory / "broker.conf"
        self._conf, self._settings = conf, {**SETTINGS, "listenPort": str(port)}
        self._arguments = [
            "broker",
            "-n",
            nameserver,
            "-c",
            str(conf),
            "--data",
            str(self.data),
            "--raft-group",
            GROUP,
            "--raft-peers",
            peers,
            "--raft-id",
            name,
            *(["--raft-witness", witness] if witness else []),
        ]
        self._always = len(self._arguments)
        self.within = list(within)
        """May change between two starts."""
        if disk_bytes:
            self.within += [*OWN_DISK, f"size={disk_bytes}", str(self.disk)]
        if files:
            self.within += ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"']
        self.server = Server(name, self._arguments, directory, within=self.within)

    @property
    def filler(self) -> Path:
        """A file on its own disk, to take the room away."""
        seen_by_it = Path("/proc", str(self.server.pid), "root")
        return seen_by_it.joinpath(*self.disk.parts[1:], "filler")

    def start(self, *extra: str, settings: Mapping[str, str] = {}) -> None:
        self.configure(settings)
        self._arguments[self._always :] = extra
        self.server.start()

    def configure(self, settings: Mapping[str, str]) -> None:
        self._settings |= settings
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))

    def plain_arguments(self) -> list[str]:
        """Of a broker without a group, on the same directory and port."""
        return self._arguments[: self._arguments.index("--raft-group")]

    def committed_end(self) -> int:
        """Where in its log the last entry ends that it knew to be committed when it stopped."""
        slot = decode_slot((self.data / "raft/commit").read_bytes()[:SLOT_BYTES])
        assert slot is not None
        return slot.doubt

    def verified(self) -> Findings:
        """What `tianzhou store verify` finds in its directory."""
        files = RealFiles()
        directory = Directory(files, str(self.data), detect(files, str(self.data)))
        try:
            return directory.verify(lambda _done, _total: None)
        finally:
            directory.close()

    def log_bytes(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.data / "commitlog").iterdir()))

    def events(self) -> list[Event]:
        """What it logged of its group, in all of its lives."""
        found: list[Event] = []
        for line in (self.directory / "server.log").read_text().splitlines():
            day, _, rest = line.partition(" ")
            moment, _, rest = rest.partition(" ")
            words = rest.split()
            if len(words) > 1 and words[1].startswith("raft."):
                at = datetime.strptime(f"{day} {moment}", "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007
                pairs = (word.partition("=") for word in words[2:])
                found.append(
                    Event(at.timestamp(), words[1], {name: value for name, _, value in pairs})
                )
        return found

    def runtime(self) -> dict[str, str]:
        return looking.runtime(self.address)

    def raft(self) -> dict[str, Any]:
        """What it says of its group."""
        with BlockingPeer(self.address) as peer:
            answer, body = peer.call(RequestCode.VIEW_RAFT)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(body)


class Cluster:
    """Owner: a test."""

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        disk_bytes: int = 0,
        files: int = 0,
        within: Sequence[Sequence[str]] = (),
        witness: str = "",
    ) -> None:
        """`within` has a command for each of the first members; `witness` is the name of a member
        besides these."""
        first = spare_ports(1 + 2 * (size + ADDED_MAX))
        self.nameserver = f"{HOST}:{first}"
        self._names = Server("ns", ["nameserver", "-p", str(first)], directory / "ns")
        ports = range(first + 1, first + 2 * size + 1, 2)
        self._spare_ports = iter(range(ports.stop, ports.stop + 2 * ADDED_MAX, 2))
        self._directory = directory
        self.settings: dict[str, str] = {}
        """Besides those of every test."""
        self.peers = ";".join(f"n{rank}={HOST}:{port}" for rank, port in enumerate(ports))
        if witness:
            self.peers += f";{witness}={HOST}:{next(self._spare_ports)}"
        self.members = [
            Member(
                f"n{rank}",
                directory / f"n{rank}",
                self.nameserver,
                self.peers,
                port + 1,
                disk_bytes=disk_bytes,
                files=files,
                within=within[rank] if rank < len(within) else (),
                witness=witness,
            )
            for rank, port in enumerate(ports)
        ]

    def start_names(self) -> None:
        self._names.start()
        self._names.wait_ready()

    def start(self) -> None:
        self.start_names()
        for member in self.members:
            member.start("--raft-new", settings=self.settings)
        for member in self.members:
            member.server.wait_ready()
        wait_for("a leader", lambda: self.leader() is not None)

    def spare_port(self) -> int:
        return next(self._spare_ports)

    def add(self, name: str) -> Member:
        """One more, with an empty directory; not started, and not yet of the group."""
        port = next(self._spare_ports)
        self.peers += f";{name}={HOST}:{port}"
        member = Member(name, self._directory / name, self.nameserver, self.peers, port + 1)
        self.members.append(member)
        return member

    def leader(self) -> Member | None:
        """Who is the master as clients see it, and lives."""
        try:
            with Admin(nameserver=self.nameserver) as admin:
                places = [place.addresses.get(0) for place in admin.brokers.all()]
        except TianzhouError:
            return None
        found = [one for one in self.members if one.address in places and one.server.is_alive]
        return found[0] if found else None

    def wait_leader(self) -> Member:
        wait_for("a leader", lambda: self.leader() is not None)
        found = self.leader()
        assert found is not None
        return found

    def followers(self) -> list[Member]:
        leader = self.wait_leader()
        return [member for member in self.members if member is not leader]

    def events(self, since_s: float) -> list[Event]:
        """What all members logged since then, in order. They share the clock of this machine, and
        log milliseconds."""
        found = (event for member in self.members for event in member.events())
        late = (event for event in found if event.at_s > since_s - 0.001)
        return sorted(late, key=lambda event: event.at_s)

    def create_topic(self) -> None:
        def is_made() -> bool:
            try:
                with Admin(nameserver=self.nameserver) as admin:
                    admin.topics.create(TOPIC, queues=QUEUES)
            except TianzhouError:
                return False  # the group elects somebody else just now
            return True

        wait_for("the topic", is_made)

    def is_level(self, member: Member) -> bool:
        """Whether a member has all that the leader had a moment ago."""
        leader = self.leader()
        if leader is None:
            return False
        commit = leader.raft()["commit"]
        return member.raft()["applied"] >= commit - 5

    def wait_equal(self) -> None:
        """Until everybody has applied the same."""

        def is_equal() -> bool:
            looks = [member.raft() for member in self.members]
            return (
                len({number for look in looks for number in (look["applied"], look["last"])}) == 1
            )

        wait_for("equal logs", is_equal)

    def values(self, member: Member) -> list[str]:
        """The body of every message that a member shows."""
        return [view.body.decode() for view in looking.shown(member.address, TOPIC, QUEUES)]

    def check_identical(self) -> None:
        """Stop all, and compare their logs byte for byte, as far as each knows to be committed:
        whoever stops last has a few entries more, and may have been alone with them."""
        for member in self.members:
            if member.server.is_alive:
                member.server.stop()
        found = {member.name: member.verified() for member in self.members}
        for one in found.values():
            # What is not known to be committed is in the log, and not yet in the queues.
            worse = [text for text in one.problems if "units are missing" not in text]
            assert not worse, one
            assert not one.damage, one
        (start,) = {one.log_start for one in found.values()}
        end = min(member.committed_end() for member in self.members)
        assert max(one.log_end for one in found.values()) - end < 64 * 1024, (end, found)
        logs = [member.log_bytes()[: end - start] for member in self.members]
        assert all(log == logs[0] for log in logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for member in self.members:
                if member.server.lives:
                    error.add_note(f"--- {member.name}\n{member.server.last_words()[-3000:]}")
        for member in self.members:
            member.server.end()
        self._names.end()


class Load:
    """Sends numbered messages, one at a time, until it is told to stop."""

    def __init__(self, cluster: Cluster, name: str = "p") -> None:
        self.acked: list[str] = []
        self.gaps_s: list[float] = []
        self.failed = 0
        """Sends that were given up after all their tries."""
        self._name = name
        self._nameserver = cluster.nameserver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.last_ack_s = time.monotonic()

    def _run(self) -> None:
        options = ProducerOptions(send_timeout_s=1.0)
        with Producer(self._name, nameserver=self._nameserver, options=options) as producer:
            number = 0
            while not self._stop.is_set():
                number += 1
                value = f"{self._name}-{number}"
                try:
                    producer.send(Message(TOPIC, value.encode()))
                except TianzhouError:
                    self.failed += 1
                    continue
                now_s = time.monotonic()
                self.gaps_s.append(now_s - self.last_ack_s)
                self.acked.append(value)
                self.last_ack_s = now_s

    def wait_progress(self) -> float:
        """Until something that is sent from now on is acknowledged; how long that took."""
        began = time.monotonic()
        wait_for("an acknowledgement", lambda: self.last_ack_s > began + 0.0)
        return self.last_ack_s - began

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for("the first acknowledgement", lambda: bool(self.acked))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)


def check_all(cluster: Cluster, load: Load) -> None:
    """Everything acknowledged is there, on every member, and they are alike to the last byte."""
    cluster.wait_equal()
    shown = [Counter(cluster.values(member)) for member in cluster.members]
    for member, found in zip(cluster.members, shown, strict=True):
        missing = [value for value in load.acked if value not in found]
        assert not missing, f"{member.name} lost {len(missing)} of {len(load.acked)}: {missing[:5]}"
        assert found == shown[0]
    cluster.check_identical()
