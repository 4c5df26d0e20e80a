"""Two copies and a witness, as processes: a copy takes over by itself, and nothing acknowledged is
lost."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raft_cluster import GROUP, Cluster, Load, Member, check_all, wait_for

from tianzhou.replication.witness_state import SLOT_BYTES, SLOTS, decode_slot
from tianzhou.testing.chaos.processes import TIANZHOU, Server
from tianzhou.testing.kit.stopwatch import Stopwatch

WITNESS = "w"
TAKEOVER_S_MAX = 8
"""As for groups of three: the machine of the tests may be busy."""
KILLS = 3
DISK_BYTES_MAX = 16 * 1024
MEMORY_BYTES_MAX = 64 << 20


class Pair(Cluster):
    """Two brokers, and a witness in a process of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 2, witness=WITNESS)
        self.witness_data = directory / "w/data"
        self.arguments = [
            "witness",
            "--data",
            str(self.witness_data),
            "--raft-group",
            GROUP,
            "--raft-peers",
            self.peers,
            "--raft-id",
            WITNESS,
        ]
        self.witness = Server(WITNESS, [*self.arguments, "--raft-new"], directory / "w")

    def start(self) -> None:
        self.witness.start()
        super().start()
        self.witness.wait_ready()

    def restart_witness(self) -> None:
        self.witness.start()
        self.witness.wait_ready()

    def other(self, member: Member) -> Member:
        return next(one for one in self.members if one is not member)

    def counts(self) -> bool:
        """Whether the leader commits with the witness, because the other copy is away."""
        leader = self.leader()
        return leader is not None and leader.raft()["needsWitness"]

    def is_in_doubt(self) -> bool:
        """What the witness has on disk: its leader learns of a doubt only by a response."""
        data = (self.witness_data / "raft/witness").read_bytes()
        slots = [decode_slot(data[at : at + SLOT_BYTES]) for at in SLOTS]
        newest = max(filter(None, slots), key=lambda slot: slot[0], default=None)
        return newest is None or newest[1].hard.doubt != 0

    def end_witness(self) -> None:
        self.witness.end()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as made:
        try:
            made.start()
            made.create_topic()
            yield made
        finally:
            made.end_witness()


def start(member: Member) -> None:
    member.start()
    member.server.wait_ready()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_copy_takes_over_when_the_leader_is_killed(
    pair: Pair, record_property: Callable[[str, object], None]
) -> None:
    with Load(pair) as load:
        gaps_s = [take_over(pair, load) for _ in range(KILLS)]
    record_property("takeovers_s", gaps_s)
    check_all(pair, load)
    files = list((pair.witness_data / "raft").iterdir())
    assert sum(path.stat().st_size for path in files) < DISK_BYTES_MAX, files


def take_over(pair: Pair, load: Load) -> float:
    """Kill the leader; return how long no send was acknowledged."""
    leader = pair.wait_leader()
    wait_for("both copies keep up", lambda: not pair.counts())
    stopwatch = Stopwatch(pair.other(leader).server.pid, pair.witness.pid)
    count = len(load.acked)
    leader.server.kill()
    wait_for("acknowledgements of the other copy", lambda: len(load.acked) > count + 5)
    assert stopwatch.seconds() < TAKEOVER_S_MAX
    gap_s = round(max(load.gaps_s[count:]), 2)
    wait_for("the witness counts", pair.counts)
    start(leader)
    return gap_s


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_copy_without_acknowledged_messages_is_not_elected(pair: Pair) -> None:
    """The leader and the witness acknowledged messages; the leader dies, and the copy that lacks
    them returns. The group rather has no leader, also if the witness restarts meanwhile."""
    with Load(pair) as load:
        leader = pair.wait_leader()
        behind = pair.other(leader)
        behind.server.kill()
        load.wait_progress()
        wait_for("the witness counts", pair.counts)
        count = len(load.acked)
        wait_for("more messages", lambda: len(load.acked) > count + 20)
        leader.server.kill()
        pair.witness.kill()
        pair.restart_witness()
        start(behind)
        count = len(load.acked)
        wait_for("it asks to be elected", lambda: behind.raft()["role"] != "Follower")
        wait_for("it keeps asking", lambda: load.failed > 3)
        assert not behind.raft()["isLeading"]
        assert len(load.acked) <= count + 1, "acknowledged by a copy that lacks messages"
        start(leader)
        load.wait_progress()
    check_all(pair, load)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pair_continues_without_its_witness_and_repairs_it(pair: Pair) -> None:
    with Load(pair) as load:
        load.wait_progress()
        pair.witness.kill()
        load.wait_progress()
        leader = pair.wait_leader()
        wait_for("it is away", lambda: not _peer(leader)["isConnected"])
        for path in (pair.witness_data / "raft").iterdir():
            path.unlink()
        pair.witness = Server(WITNESS, pair.arguments, pair.witness_data.parent)
        pair.restart_witness()
        wait_for("it is repaired", lambda: not pair.is_in_doubt())
        leader.server.kill()
        load.wait_progress()
        start(leader)
    check_all(pair, load)


def _peer(leader: Member) -> dict[str, object]:
    return next(peer for peer in leader.raft()["peers"] if peer["name"] == WITNESS)


@pytest.mark.slow
def test_witness_hangs_without_an_effect_and_is_shown_as_what_it_is(pair: Pair) -> None:
    with Load(pair) as load:
        pair.witness.pause()
        load.wait_progress()
        pair.witness.resume()
        load.wait_progress()
        done = subprocess.run(
            [TIANZHOU, "raft", "status", GROUP, "-n", pair.nameserver, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = {row["member"]: row for row in json.loads(done.stdout)}
        assert rows[WITNESS]["role"] == "Witness"
        assert rows[WITNESS]["state"] == "votes"
        refused = subprocess.run(
            [TIANZHOU, "raft", "transfer", GROUP, WITNESS, "-n", pair.nameserver],
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode != 0
        assert "is a witness" in refused.stderr
    status = Path(f"/proc/{pair.witness.pid}/status").read_text()
    (resident,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    assert int(resident) * 1024 < MEMORY_BYTES_MAX


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_group_of_two_gets_a_witness_and_gives_it_up(tmp_path: Path) -> None:
    """A pair that was started without a witness: it is added, a copy takes over, it is removed."""
    with Cluster(tmp_path, 2) as cluster:
        cluster.start()
        cluster.create_topic()
        port = cluster.spare_port()
        peers = f"{cluster.peers};{WITNESS}=127.0.0.1:{port}"
        arguments = [
            "--data",
            str(tmp_path / "w/data"),
            "--raft-group",
            GROUP,
            "--raft-peers",
            peers,
        ]
        witness = Server(WITNESS, ["witness", *arguments, "--raft-id", WITNESS], tmp_path / "w")
        witness.start()
        try:
            witness.wait_ready()
            _raft(
                "add", GROUP, f"{WITNESS}=127.0.0.1:{port}", "--witness", "-n", cluster.nameserver
            )
            with Load(cluster) as load:
                load.wait_progress()
                leader = cluster.wait_leader()
                leader.server.kill()
                load.wait_progress()
                start(leader)
                wait_for("it is level", lambda: cluster.is_level(leader))
                _raft("remove", GROUP, WITNESS, "-y", "-n", cluster.nameserver)
                load.wait_progress()
        finally:
            witness.end()
        check_all(cluster, load)


def _raft(*words: str) -> str:
    done = subprocess.run([TIANZHOU, "raft", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_nameserver_is_the_witness_of_a_pair(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    nameserver = Server(
        WITNESS,
        [
            "nameserver",
            "-p",
            "0",
            "--data",
            str(pair.witness_data),
            *pair.arguments[3:],
            "--raft-new",
        ],
        tmp_path / "w",
    )
    pair.witness = nameserver
    with pair:
        try:
            pair.start()
            pair.create_topic()
            with Load(pair) as load:
                leader = pair.wait_leader()
                leader.server.kill()
                load.wait_progress()
                start(leader)
            check_all(pair, load)
        finally:
            pair.end_witness()
