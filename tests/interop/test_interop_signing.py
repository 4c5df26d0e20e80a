"""A NameServer of ours whose cluster has credentials: RocketMQ's broker and `mqadmin` sign."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import client_build
import java_servers
import pytest
from client_mqadmin import Mqadmin

from clients import server_process
from clients.server_process import ServerProcess
from clients.waiting import wait_until
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode

KEYS: Final = "innerClientAuthenticationCredentials"
PAIR: Final = '{"accessKey":"cluster-key","secretKey":"hush-hush"}'
TOOLS: Final = "accessKey: cluster-key\nsecretKey: hush-hush\n"
STARTED_S: Final = 60
USERS: Final = "org.apache.rocketmq.auth.authentication.provider"
"""RocketMQ's broker needs a user store before it starts with its own keys."""


@pytest.fixture
def names(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = tmp_path / "namesrv.properties"
    settings.write_text(f"{KEYS}={PAIR}\n")
    server = server_process.run(["nameserver", "-p", "0", "-c", str(settings)], tmp_path / "names")
    yield server
    server.end()
    assert "Traceback" not in server.log(), server.log()


def ask(server: ServerProcess, code: int, **ext: str) -> bytes:
    with BlockingPeer(server.nameserver) as peer:
        return peer.call(code, ext)[1]


def test_rocketmq_broker_signs_its_registration(names: ServerProcess, tmp_path: Path) -> None:
    """It signs its registration, and when it stops, its unregistration."""

    def is_known() -> bool:
        return b"broker-java" in ask(names, RequestCode.GET_BROKER_CLUSTER_INFO)

    settings = {
        "namesrvAddr": names.nameserver,
        KEYS: PAIR,
        "authenticationMetadataProvider": f"{USERS}.LocalAuthenticationMetadataProvider",
    }
    with java_servers.broker(java_servers.FIVE, tmp_path / "java", **settings) as broker:
        wait_until(
            lambda: is_known() or broker.poll() is not None,
            within_s=STARTED_S,
            what="the broker registers",
        )
        assert broker.poll() is None, (tmp_path / "java" / "output.txt").read_text()
    assert not is_known()
    assert "request.refused" not in names.log()
    assert "broker.unregistered" in names.log()


def test_mqadmin_signs_its_requests(names: ServerProcess, tmp_path: Path) -> None:
    tool = Mqadmin(client_build.build(client_build.FIVE), names.nameserver, tmp_path / "tool")
    order = ("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "T", "-v", "broker-a:4")
    refused = tool.run_anyway(*order)
    assert "CODE: 16" in refused
    assert "conf/tools.yml" in refused  # what to do about it
    (tmp_path / "tool" / "conf" / "tools.yml").write_text(TOOLS)
    assert "create or update kv config to namespace success" in tool.run(*order)
    kept = ask(names, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
    assert b"broker-a:4" in kept
