"""Slaves that were away too long, untrusted peers at the HA port, and secrets."""

import random
import socket
from pathlib import Path

from ha_cluster import GROUP, Group, Node, until, until_equal

from tianzhou.admin.commands.replication import look_at
from tianzhou.net.blocking import BlockingPeer
from tianzhou.replication.ha_frames import Hello, encode_words
from tianzhou.wire._generated_codes import RequestCode


def test_slave_away_longer_than_the_retention_starts_over(tmp_path: Path) -> None:
    with Group(tmp_path, fileReservedTime="0") as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        group.send(150, size=1000)
        until_equal(master, slave)
        slave.server.kill()
        group.send(700, size=1000)
        with BlockingPeer(master.address) as peer:
            # Files are deleted after a checkpoint, which the first call requests.
            until(
                lambda: (
                    peer.call(RequestCode.DELETE_EXPIRED_COMMITLOG)[0].code == 0
                    and min(master.log_bytes()) > max(slave.log_bytes())
                ),
                "the master forgot all that the slave has",
            )
        slave.start()
        until_equal(master, slave)
        group.send(100)
        until_equal(master, slave)
        look = look_at(slave.address)
        assert look is not None
        assert look.min > 0


def test_s32_untrusted_peers_at_the_ha_port_do_no_harm(tmp_path: Path) -> None:
    dice = random.Random(11)
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        for _ in range(40):
            with socket.create_connection(("127.0.0.1", master.port + 1), 5) as outsider:
                outsider.sendall(bytes(dice.choices(range(256), k=dice.randrange(1, 300))))
        with socket.create_connection(("127.0.0.1", master.port + 1), 5) as plain:
            plain.sendall((0).to_bytes(8, "big"))
            plain.settimeout(10)
            assert read_end(plain) == b"", "peers without a greeting must not get the log"
        hello = Hello(cluster="DefaultCluster", name=GROUP, id=7, end=0)
        with socket.create_connection(("127.0.0.1", master.port + 1), 5) as liar:
            liar.sendall(encode_words(hello) + (0).to_bytes(8, "big"))
            group.send(50)
            liar.sendall((1 << 40).to_bytes(8, "big"))  # more than was ever sent
            liar.settimeout(10)
            assert read_end(liar)
        until_equal(master, slave)
        look = look_at(master.address)
        assert look is not None
        assert [one.broker_id for one in look.slaves] == [1]


def read_end(connection: socket.socket) -> bytes:
    """Read until the other side closes."""
    got = b""
    try:
        while data := connection.recv(65536):
            got += data
    except ConnectionResetError:
        pass
    return got


def test_s32_slave_without_the_secret_is_rejected(tmp_path: Path) -> None:
    with Group(tmp_path, ha_secret="open sesame") as group:
        master, slave = group.master, group.add(1)
        outsider = group.add(2, ha_secret="open barley")
        for node in (master, slave, outsider):
            node.start()
        group.create_topic()
        group.send(50)
        until_equal(master, slave)
        until(lambda: "secret" in last_error(outsider), "the rejected slave knows the reason")
        assert not any(any(data) for data in outsider.log_bytes().values())


def last_error(node: Node) -> str:
    look = look_at(node.address)
    return "" if look is None else look.last_error
