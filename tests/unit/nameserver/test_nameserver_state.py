"""The two forms of answers with addresses."""

import pytest

from tianzhou.nameserver.state import (
    bare_keys,
    reads_standard_json,
    reply_with_addresses,
)
from tianzhou.wire.codec import Header
from tianzhou.wire.fastjson import encode
from tianzhou.wire.routes import BrokerData, ClusterTable, decode_cluster_table

TABLE = ClusterTable(
    broker_addr_table={
        "0": BrokerData(broker_name="0", broker_addrs={0: "[::1]:1", 12: "h:2"}, cluster="1"),
        "1": BrokerData(broker_name="1", broker_addrs={}, cluster="1"),
    },
    cluster_addr_table={"1": ["0", "1"]},
)


def test_bare_keys_unquotes_broker_ids_only() -> None:
    text = bare_keys(encode(TABLE))
    assert b'"0":{"brokerAddrs":{0:"[::1]:1",12:"h:2"},' in text
    assert b'"1":{"brokerAddrs":{},' in text
    assert b'{"1":["0","1"]}' in text
    assert decode_cluster_table(text) == TABLE


@pytest.mark.parametrize("standard", [True, False])
def test_reply_with_addresses_has_equal_content_in_both_forms(standard: bool) -> None:
    body = reply_with_addresses(TABLE, standard=standard).body
    assert decode_cluster_table(body) == TABLE


@pytest.mark.parametrize(("version", "standard"), [(0, False), (400, False), (401, True)])
def test_reads_standard_json_depends_on_the_client_version(version: int, standard: bool) -> None:
    assert reads_standard_json(Header(code=105, opaque=0, version=version)) is standard
