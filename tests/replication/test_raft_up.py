"""`tianzhou up --replicas 3`: a whole group with one command."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from raft_cluster import wait_for

from tianzhou.base.errors import TianzhouError
from tianzhou.client import Message
from tianzhou.client.sync import Admin, Producer
from tianzhou.cmd.raft_up import PORTS_APART
from tianzhou.testing.kit.server_process import ServerProcess, server_command, spare_ports


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_sent(producer: Producer, body: bytes) -> bool:
    try:
        producer.send(Message("tried-out", body))
    except TianzhouError:
        return False
    return True


@pytest.mark.slow
def test_up_with_replicas_says_why_a_member_did_not_start(tmp_path: Path) -> None:
    first = spare_ports(2 * PORTS_APART)
    ports = ["--broker-port", str(first + 2), "--nameserver-port", "0", "--no-http"]
    arguments = ["up", "--replicas", "3", "--ephemeral", *ports]
    server = ServerProcess("up", server_command(arguments), tmp_path)
    with socket.create_server(("127.0.0.1", first + 2 + PORTS_APART)):
        server.start()
        try:
            assert server.wait_ended(60) == 1
        finally:
            server.end()
    (said,) = [line for line in server.log().splitlines() if "member n1 exited" in line]
    assert f"cannot listen on 127.0.0.1:{first + 2 + PORTS_APART}" in said


@pytest.mark.slow
def test_up_with_replicas_survives_a_kill_of_one_process(tmp_path: Path) -> None:
    ports = ["--broker-port", "0", "--nameserver-port", "0", "--http-port", "0"]
    arguments = ["up", "--replicas", "3", "--data", str(tmp_path / "data"), *ports]
    server = ServerProcess("up", server_command(arguments), tmp_path)
    server.start()
    pids: dict[str, int] = {}
    try:
        facts: dict[str, Any] = {**server.wait_ready(within_s=60)}
        pids = facts["pids"]
        assert sorted(facts["members"]) == ["n0", "n1", "n2"]
        with Admin(nameserver=facts["nameserver"]) as admin:

            def masters() -> list[str]:
                found = [place.addresses.get(0) for place in admin.brokers.all()]
                return [address for address in found if address]

            wait_for("a master", lambda: bool(masters()))
            (master,) = masters()
            with Producer("makers", nameserver=facts["nameserver"]) as producer:
                producer.send(Message("tried-out", b"before"))
                (name,) = [name for name, at in facts["members"].items() if at == master]
                os.kill(pids[name], signal.SIGKILL)
                wait_for("another master", lambda: masters() not in ([], [master]))
                wait_for("a send", lambda: is_sent(producer, b"after"))
        assert server.stop(within_s=300) == 0, server.log()
        assert not [pid for pid in pids.values() if is_alive(pid)]
    finally:
        server.end()
        for pid in pids.values():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
