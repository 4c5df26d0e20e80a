"""`tianzhou up --replicas 3`: a whole group with one command."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from raft_cluster import wait_for

from tianzhou.base.errors import TianzhouError
from tianzhou.client import Message
from tianzhou.client.sync import Admin, Producer
from tianzhou.testing.chaos.processes import TIANZHOU


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
def test_a_group_on_this_machine_survives_one_of_its_processes(tmp_path: Path) -> None:
    ready, said = tmp_path / "ready.json", tmp_path / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [TIANZHOU, "up", "--replicas", "3", "--data", str(tmp_path / "data"),
             "--broker-port", "0", "--nameserver-port", "0", "--http-port", "0",
             "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=tmp_path,
        )  # fmt: skip
    pids: dict[str, int] = {}
    try:
        wait_for("the group serves", lambda: ready.exists() or process.poll() is not None, 60)
        assert process.poll() is None, said.read_text()
        facts = json.loads(ready.read_text())
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
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0, said.read_text()
        assert not [pid for pid in pids.values() if is_alive(pid)]
    finally:
        for pid in [*pids.values(), process.pid]:
            if pid == process.pid and process.poll() is None:
                process.kill()
                process.wait()
            elif pid != process.pid and is_alive(pid):
                os.kill(pid, signal.SIGKILL)
