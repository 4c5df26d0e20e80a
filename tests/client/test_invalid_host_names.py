"""Host names that Python cannot even look up (`a..b`) are unreachable addresses like any other."""

import asyncio

import pytest
from loops import Run

from tianzhou.admin.doctor.reach import Reached, probe
from tianzhou.broker.replica import own_address
from tianzhou.client import Message, Producer, PushConsumer
from tianzhou.client.errors import NoNameServer, Unreachable
from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.blocking import BlockingConnection
from tianzhou.net.acceptor import bind
from tianzhou.net.dial import dial
from tianzhou.wire._generated_codes import RequestCode

NAMES = ("a..b", "a" * 80 + ".example", "\udcff")


@pytest.mark.parametrize("host", NAMES)
def test_client_with_an_invalid_host_name_reports_no_name_server(run: Run, host: str) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=f"{host}:1") as producer:
            with pytest.raises(NoNameServer, match="not a valid host name"):
                await producer.send(Message("orders", b"x"))
        consumer = PushConsumer("readers", nameserver=f"{host}:1", subscribe={"orders": "*"})
        with pytest.raises(NoNameServer, match="not a valid host name"):
            await consumer.start()

    run(body)


@pytest.mark.parametrize("host", NAMES)
def test_connection_to_an_invalid_host_name_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable, match="not a valid host name"):
        BlockingConnection(f"{host}:1", ClientOptions())
    with pytest.raises(OSError, match="not a valid host name"):
        asyncio.run(dial(host, 1))
    with pytest.raises(OSError, match="not a valid host name"):
        bind(host, 0)
    assert own_address._source_towards(f"{host}:1") == ""
    found = probe(f"{host}:1", RequestCode.GET_BROKER_CLUSTER_INFO)
    assert found.reached is Reached.NO_NAME
