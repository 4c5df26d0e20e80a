"""Addresses sent by untrusted peers: validated strictly, and never connected to."""

import socket

import pytest
from live import Live

from abuse.raw_client import heartbeat_of
from tianzhou.base.errors import UsageError
from tianzhou.replication.raft_settings import peers_of
from tianzhou.wire.registration import encode_compressed
from tianzhou.wire.tables import RegisterBrokerBody

EMPTY = encode_compressed(RegisterBrokerBody(), 400)
INVALID_ADDRESSES = (
    "169.254.169.254:80",
    "[fe80::1]:80",
    "[::ffff:169.254.169.254]:80",
    "224.0.0.1:80",
    "127.0.0.1",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:80:80",
    "[::1:80",
    "0x7f.1:80",
    "0xa9fea9fe:80",
    "2130706433:80",
    "host name:80",
    "host\n:80",
    "http://127.0.0.1:80",
    ":80",
    "",
)
IDENTITY = {
    "brokerName": "forger",
    "clusterName": "Forgers",
    "brokerId": "0",
    "compressed": "true",
    "bodyCrc32": "0",
}


@pytest.mark.parametrize("address", INVALID_ADDRESSES)
def test_s39_registration_with_an_invalid_address_is_rejected(live: Live, address: str) -> None:
    with live.to_nameserver() as client:
        for field in ("brokerAddr", "haServerAddr"):
            if field == "haServerAddr" and not address:
                continue  # valid: a broker without replication
            fields = {**IDENTITY, "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2"}
            response = client.ask(103, {**fields, field: address}, EMPTY)
            assert response.code != 0, field
            assert "address" in response.remark, response
        assert b"Forgers" not in client.ask(106).body


def test_s39_servers_never_connect_to_addresses_from_requests(live: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1.0)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        fields = {"brokerAddr": address, "haServerAddr": address}
        with live.to_nameserver() as client, live.to_broker() as member:
            # A new broker, and one that claims to be a slave of the existing broker.
            assert client.ask(103, {**IDENTITY, **fields}, EMPTY).code == 0
            beside = {"brokerName": "broker-a", "clusterName": "DefaultCluster", "brokerId": "7"}
            assert client.ask(103, {**IDENTITY, **beside, **fields}, EMPTY).code == 0
            body = heartbeat_of(client=f"{address}@1", consumers=("dialled",))
            assert member.ask(34, {}, body).code == 0
            with pytest.raises(TimeoutError):
                listener.accept()
            for one in ({}, beside):
                gone = {**IDENTITY, **one, "brokerAddr": address}
                assert client.ask(104, gone).code == 0


def test_s39_address_of_many_digits_is_parsed_quickly(live: Live) -> None:
    """A regular expression that backtracks takes minutes for the first host, hours for the last."""
    with live.to_nameserver() as client:
        for count in (30, 60, 250):
            fields = {"brokerAddr": f"{'1' * count}-:80", "haServerAddr": "127.0.0.1:2"}
            assert client.ask(103, {**IDENTITY, **fields}, EMPTY).code == 0
            assert client.ask(104, {**IDENTITY, **fields}).code == 0


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "224.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::ffff:169.254.169.254]",
        "2852039166",
        "0xA9FEA9FE",
        "169.254.43518",
        "169.254.169.254.",
        "127.1",
        "0",
    ],
)
def test_s39_raft_member_address_that_is_unsafe_is_rejected(host: str) -> None:
    with pytest.raises(UsageError, match="is not a valid member address"):
        peers_of(f"n0=127.0.0.1:1;n1={host}:80")
