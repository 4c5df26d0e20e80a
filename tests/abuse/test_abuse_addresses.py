"""Addresses that strangers name: read strictly, and never dialled because somebody said so."""

import socket

import pytest
from live import Live

from abuse.raw_client import heartbeat_of
from tianzhou.base.errors import UsageError
from tianzhou.replication.raft_settings import peers_of
from tianzhou.wire.registration import encode_compressed
from tianzhou.wire.tables import RegisterBrokerBody

EMPTY = encode_compressed(RegisterBrokerBody(), 400)
UNSOUND = (
    "169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80", "224.0.0.1:80",
    "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:80:80", "[::1:80", "0x7f.1:80",
    "0xa9fea9fe:80", "2130706433:80", "host name:80", "host\n:80", "http://127.0.0.1:80", ":80", "",
)  # fmt: skip
NAMED = {
    "brokerName": "forger", "clusterName": "Forgers", "brokerId": "0", "compressed": "true",
    "bodyCrc32": "0",
}  # fmt: skip


@pytest.mark.parametrize("address", UNSOUND)
def test_s39_a_broker_at_no_sound_address_is_not_registered(live: Live, address: str) -> None:
    with live.to_nameserver() as client:
        for wrong in ("brokerAddr", "haServerAddr"):
            if wrong == "haServerAddr" and not address:
                continue  # without one there is no replication, and that is sound
            told = {**NAMED, "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2"}
            answer = client.ask(103, {**told, wrong: address}, EMPTY)
            assert answer.code != 0, wrong
            assert "address" in answer.remark, answer
        assert b"Forgers" not in client.ask(106).body


def test_s39_nobody_dials_what_a_stranger_names(live: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1.0)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        told = {"brokerAddr": address, "haServerAddr": address}
        with live.to_nameserver() as client, live.to_broker() as member:
            # A broker of its own, and one that wants to be a slave of the broker that is there.
            assert client.ask(103, {**NAMED, **told}, EMPTY).code == 0
            beside = {"brokerName": "broker-a", "clusterName": "DefaultCluster", "brokerId": "7"}
            assert client.ask(103, {**NAMED, **beside, **told}, EMPTY).code == 0
            body = heartbeat_of(client=f"{address}@1", consumers=("dialled",))
            assert member.ask(34, {}, body).code == 0
            with pytest.raises(TimeoutError):
                listener.accept()
            for one in ({}, beside):
                gone = {**NAMED, **one, "brokerAddr": address}
                assert client.ask(104, gone).code == 0


def test_s39_a_host_of_many_digits_does_not_occupy_the_nameserver(live: Live) -> None:
    """A regular expression that backtracks takes minutes for the first one, hours for the last."""
    with live.to_nameserver() as client:
        for count in (30, 60, 250):
            told = {"brokerAddr": f"{'1' * count}-:80", "haServerAddr": "127.0.0.1:2"}
            assert client.ask(103, {**NAMED, **told}, EMPTY).code == 0
            assert client.ask(104, {**NAMED, **told}).code == 0


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "[fe80::1]", "224.0.0.1", "0.0.0.0", "[::]", "[::ffff:169.254.169.254]",
        "2852039166", "0xA9FEA9FE", "169.254.43518", "169.254.169.254.", "127.1", "0",
    ],
)  # fmt: skip
def test_s39_members_of_a_group_are_not_looked_for_there(host: str) -> None:
    with pytest.raises(UsageError, match="is not a valid member address"):
        peers_of(f"n0=127.0.0.1:1;n1={host}:80")
