"""Promoting a slave by hand, and what happens to the old master."""

import contextlib
import json
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

import pytest
from ha_cluster import (
    GROUP,
    TOPIC,
    Group,
    Node,
    cluster_rows,
    promote,
    read_all,
    until,
    until_equal,
)

from tianzhou.admin.commands.replication import look_at
from tianzhou.broker.replica.registration import HEAR_S
from tianzhou.client.errors import ClientError
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import Message
from tianzhou.testing.chaos.processes import HOST, TIANZHOU
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header, decode_header, encode_command, response_to
from tianzhou.wire.frame import PREFIX


def master_of(group: Group) -> str | None:
    for node in group.nodes:
        look = look_at(node.address)
        if look is not None and look.role == "MASTER":
            return node.address
    return None


def test_old_master_follows_and_sets_aside_unconfirmed_messages(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave, third = group.master, group.add(1), group.add(2)
        for node in (master, slave, third):
            node.start()
        group.create_topic()
        sent = group.send(300)
        until_equal(master, slave)
        until_equal(master, third)
        slave.server.kill()
        third.server.kill()
        alone = group.send(20, first=1000)
        master.server.kill()
        slave.start()
        third.start()
        assert promote(group)["epoch"] == 2
        more = group.send(50, first=2000)
        until_equal(slave, third)  # the third broker finds the new master by itself
        master.start()  # it starts as a master and then steps down
        until_equal(slave, master)
        look = look_at(master.address)
        assert look is not None
        assert (look.role, look.epoch) == ("SLAVE", 2)
        assert look.broker_id > 0
        listed = set_aside(master)
        assert [row["bodyBytes"] for row in listed] == [200] * 20
        assert {row["topic"] for row in listed} == {TOPIC}
        seen = read_all(group)
        assert sorted(seen) == sorted([*sent, *more])
        assert not set(alone) & set(seen)


def test_promoted_slave_serves_messages_of_a_topic_it_did_not_know(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        sent = group.send(100)
        until_equal(master, slave)
        slave.server.stop()
        master.server.kill()
        for table in (slave.data / "config").glob("topics.json*"):
            table.unlink()
        slave.start()
        promote(group)
        until(lambda: sorted(read_all(group)) == sorted(sent), "everything is there")
        assert sorted([*sent, *group.send(20, first=1000)]) == sorted(read_all(group))


def test_promotion_above_the_highest_epoch_is_rejected(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        sent = group.send(20)
        until_equal(master, slave)
        master.server.kill()
        with BlockingPeer(slave.address) as peer:
            for above in (2**63 - 1, 2**62, -1):
                ext = {"aboveEpoch": str(above)}
                answer, _ = peer.call(RequestCode.PROMOTE_BROKER, ext)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert f"invalid aboveEpoch {above}" in (answer.remark or "")
        assert promote(group)["epoch"] == 2
        assert sorted(read_all(group)) == sorted(sent)


def set_aside(node: Node) -> list[dict[str, object]]:
    (path,) = (node.data / "set-aside").glob("*.jsonl")
    assert path.with_suffix(".log").stat().st_size > 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_running_master_hands_over_without_losing_anything(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        sent = group.send(200)
        refused = subprocess.run(
            [TIANZHOU, "broker", "promote", GROUP, "-n", group.nameserver, "--yes"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert refused.returncode != 0
        assert "--switch" in refused.stderr
        assert promote(group, "--switch")["master"] == slave.address
        sent += group.send(100, first=1000)
        until_equal(slave, master)
        assert not (master.data / "set-aside").exists()
        until(lambda: shown(group) == wanted(slave, master), "the command shows who follows whom")
        assert sorted(read_all(group)) == sorted(sent)
        # A restart does not undo the switch, whatever the settings files say.
        for node in (master, slave):
            node.server.stop()
        slave.start()
        master.start()
        assert master_of(group) == slave.address


def shown(group: Group) -> list[dict[str, object]]:
    kept = ("id", "address", "epoch", "lag_bytes", "in_sync", "following")
    return [{name: row[name] for name in kept} for row in cluster_rows(group)]


def wanted(master: Node, slave: Node) -> list[dict[str, object]]:
    return [
        {
            "id": 0,
            "address": master.address,
            "epoch": 2,
            "lag_bytes": None,
            "in_sync": [0, 2],
            "following": "",
        },
        {
            "id": 2,
            "address": slave.address,
            "epoch": 2,
            "lag_bytes": 0,
            "in_sync": None,
            "following": "follows",
        },
    ]


def test_slave_rejects_sends(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        group.create_topic()
        slave.start()
        master.server.kill()
        until(lambda: not_in_route(group, master), "the master left the route")
        with Producer("p", nameserver=group.nameserver) as producer, pytest.raises(ClientError):
            producer.send(Message(TOPIC, b"x"))


def not_in_route(group: Group, node: Node) -> bool:
    from tianzhou.client.sync import Admin

    with Admin(nameserver=group.nameserver) as admin:
        places = admin.brokers.all()
    return node.address not in {a for place in places for a in place.addresses.values()}


class SlowNameServer:
    """Accepts registrations, and answers those of a later epoch than 1 when a test says so."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.may_answer = threading.Event()
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while prefix := stream.read(PREFIX.size):
                size, word = PREFIX.unpack(prefix)
                frame = stream.read(size + 4 - PREFIX.size)
                header = decode_header(frame[: word & 0xFFFFFF], word >> 24)
                if int(header.ext.get("tzEpoch", 0)) > 1:
                    self.heard.set()
                    self.may_answer.wait()
                connection.sendall(encode_command(response_to(header, 0)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._listening.close()


def test_promotion_responds_after_nameservers_know_the_new_epoch(tmp_path: Path) -> None:
    """Otherwise a master that dies right after its promotion leaves no trace of the new epoch."""
    with SlowNameServer() as names:
        slave = Node(tmp_path / "node", names.address, 1, {})
        try:
            slave.start()
            with BlockingPeer(slave.address) as peer:
                answers: list[int] = []
                ext = {"aboveEpoch": "1"}
                asking = threading.Thread(
                    target=lambda: answers.append(
                        peer.call(RequestCode.PROMOTE_BROKER, ext)[0].code
                    )
                )
                asking.start()
                assert names.heard.wait(60)
                heard_s = time.monotonic()
                asking.join(HEAR_S / 5)
                # On a very slow machine the broker may have waited long enough by now.
                assert not answers or time.monotonic() - heard_s > HEAR_S / 2, "responded too early"
                names.may_answer.set()
                asking.join(60)
                assert answers == [0]
        finally:
            slave.server.end()


def promote_at_once(*slaves: Node) -> list[Header]:
    """Promote all of them at the same time, as two operators would."""
    start, answers = threading.Barrier(len(slaves)), list[Header]()

    def ask(slave: Node) -> None:
        with BlockingPeer(slave.address, timeout_s=60) as peer:
            start.wait()
            answers.append(peer.call(RequestCode.PROMOTE_BROKER, {"aboveEpoch": "1"})[0])

    asking = [threading.Thread(target=ask, args=(slave,)) for slave in slaves]
    for one in asking:
        one.start()
    for one in asking:
        one.join(60)
    return answers


def test_two_slaves_promoted_at_once_end_as_master_and_slave(
    tmp_path: Path,
) -> None:
    """Otherwise both acknowledge messages in one epoch, and neither could follow the other."""
    with Group(tmp_path) as group:
        slaves = [group.add(1), group.add(2)]
        for node in (group.master, *slaves):
            node.start()
        group.create_topic()
        group.send(20)
        for slave in slaves:
            until_equal(group.master, slave)
        group.master.server.kill()
        answers = promote_at_once(*slaves)
        refused = [answer for answer in answers if answer.code]
        epochs = [answer.ext["epoch"] for answer in answers if not answer.code]
        assert len(answers) == 2
        # On a busy machine one request may come so late that it is a second promotion.
        assert epochs in (["2"], ["2", "3"], ["3", "2"]), answers
        assert all("promoted at the same time" in (answer.remark or "") for answer in refused)
        group.send(20, first=20)
        until_equal(*slaves)


def test_old_master_that_hung_steps_down_before_its_next_registration(tmp_path: Path) -> None:
    with Group(tmp_path, registerNameServerPeriod="60000") as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        group.send(20)
        until_equal(master, slave)
        master.server.pause()
        promote(group)
        master.server.resume()
        until(lambda: role_of(master) == "SLAVE", "the old master has heard of it", wait_s=10)


def role_of(node: Node) -> str | None:
    look = look_at(node.address)
    return None if look is None else look.role


def test_switch_to_a_slave_that_does_not_follow_changes_nothing(tmp_path: Path) -> None:
    """The master would step down, and no broker would accept messages until an operator acts."""
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1, haMasterAddress="127.0.0.1:1")
        master.start()
        slave.start()
        group.create_topic()
        refused = subprocess.run(
            [TIANZHOU, "broker", "promote", GROUP, "-n", group.nameserver, "--yes", "--switch"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert refused.returncode == 1
        assert "does not follow the master" in refused.stderr
        assert "nothing was changed" in refused.stderr
        assert master_of(group) == master.address
        assert len(group.send(20)) == 20
