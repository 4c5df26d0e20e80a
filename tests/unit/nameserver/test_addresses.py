"""Which addresses are sound, and which one a client is told."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.nameserver.addresses import as_dialled, checked_address, is_same_host

GOOD = [
    "127.0.0.1:10911",
    "10.0.0.1:1",
    "broker-a:65535",
    "b.example.com:10911",
    "my_host:10911",
    "[::1]:10911",
    "[2001:db8::1]:10911",
]


@pytest.mark.parametrize("address", GOOD)
def test_checked_address_that_is_valid_is_unchanged(address: str) -> None:
    assert checked_address(address) == address


BAD = {
    "empty": "",
    "no port": "10.0.0.1",
    "empty port": "10.0.0.1:",
    "no host": ":10911",
    "port 0": "h:0",
    "port too high": "h:65536",
    "invalid port": "h:10a",
    "port with a sign": "h:+1",
    "port in other digits": "h:١",
    "trailing newline": "h:1\n",
    "blank in the host": "h h:1",
    "quote in the host": 'h":1',
    "control in the host": "h\0:1",
    "a URL": "http://h:1",
    "two hosts": "h:1;g:2",
    "IPv6 without brackets": "::1:10911",
    "IPv4 in brackets": "[10.0.0.1]:1",
    "name in brackets": "[h]:1",
    "open bracket": "[::1:1",
    "zone": "[fe80::1%eth0]:1",
    "half a number": "10.0.1:1",
    "a number": "2130706433:1",
    "number too high": "10.0.0.256:1",
    "services of the cloud": "169.254.169.254:80",
    "link-local": "[fe80::1]:1",
    "mapped link-local": "[::ffff:169.254.169.254]:1",
    "multicast": "224.0.0.1:1",
    "everywhere": "0.0.0.0:10911",
    "everywhere in IPv6": "[::]:10911",
    "too long": "h" * 300 + ":1",
}


@pytest.mark.parametrize("address", BAD.values(), ids=list(BAD))
def test_checked_address_that_clients_cannot_reach_is_rejected(address: str) -> None:
    with pytest.raises(UsageError):
        checked_address(address)


def test_checked_address_may_be_a_wildcard_if_it_will_be_replaced() -> None:
    assert checked_address("0.0.0.0:10911", may_be_any=True) == "0.0.0.0:10911"
    with pytest.raises(UsageError):
        checked_address("169.254.169.254:80", may_be_any=True)


@pytest.mark.parametrize(
    ("remote", "local", "same"),
    [
        ("127.0.0.1:5000", "127.0.0.1:9876", True),
        ("127.0.0.2:5000", "127.0.0.1:9876", True),
        ("::1:5000", "::1:9876", True),
        ("[::1]:5000", "[::1]:9876", True),
        ("::ffff:127.0.0.1:5000", "::ffff:127.0.0.1:9876", True),
        ("10.0.0.5:5000", "10.0.0.5:9876", True),
        ("::ffff:10.0.0.5:5000", "10.0.0.5:9876", True),
        ("10.0.0.6:5000", "10.0.0.5:9876", False),
        ("2001:db8::2:5000", "2001:db8::1:9876", False),
        ("unknown:0", "unknown:0", False),
        ("unknown:0", "127.0.0.1:9876", False),
    ],
)
def test_is_same_host_recognises_local_peers(remote: str, local: str, same: bool) -> None:
    assert is_same_host(remote=remote, local=local) is same


@pytest.mark.parametrize(
    ("address", "local", "told"),
    [
        ("127.0.0.1:10911", "192.168.1.5:9876", "192.168.1.5:10911"),
        ("0.0.0.0:10911", "127.0.0.1:9876", "127.0.0.1:10911"),
        ("127.0.0.1:10911", "2001:db8::1:9876", "[2001:db8::1]:10911"),
        ("127.0.0.1:10911", "::1:9876", "[::1]:10911"),
        ("[::1]:10911", "10.0.0.5:9876", "10.0.0.5:10911"),
        ("127.0.0.1:10911", "::ffff:10.0.0.5:9876", "10.0.0.5:10911"),
        # What says nothing, or means another machine there, changes nothing.
        ("127.0.0.1:10911", "unknown:0", "127.0.0.1:10911"),
        ("127.0.0.1:10911", "fe80::1%eth0:9876", "127.0.0.1:10911"),
        ("127.0.0.1:10911", "0.0.0.0:9876", "127.0.0.1:10911"),
    ],
)
def test_as_dialled_returns_the_address_that_the_client_dialled(
    address: str, local: str, told: str
) -> None:
    assert as_dialled(address, local) == told
