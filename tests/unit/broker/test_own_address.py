"""Where a broker says that it is."""

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.own_address import own_host


@pytest.mark.parametrize(
    ("host", "address", "nameservers", "found"),
    [
        ("10.0.0.1", "", "127.0.0.1:1", "10.0.0.1"),
        ("0.0.0.0", "broker.example.com", "127.0.0.1:1", "broker.example.com"),
        ("0.0.0.0", "[fd00::7]", "", "fd00::7"),
        # On the way to the first NameServer that there is a way to.
        ("0.0.0.0", "", "127.0.0.1:1", "127.0.0.1"),
        ("", "", " no.such.invalid:1; [::1]:1;127.0.0.1:1", "::1"),
        ("::", "", "[::1]:1", "::1"),
        ("0.0.0.0", "", "", "127.0.0.1"),
    ],
)
def test_own_host_is_the_setting_or_derived_from_the_nameserver(
    host: str, address: str, nameservers: str, found: str
) -> None:
    config = BrokerConfig(host=host, address=address, nameservers=nameservers)
    assert own_host(config) == found
