"""A NameServer that is killed and restarted still knows which broker is missing."""

import json
import subprocess
from pathlib import Path

from tianzhou.testing.chaos.processes import HOST, SMALL_FILES, TIANZHOU, Server, spare_ports
from tianzhou.testing.kit.patience import Patience


def missing(nameserver: str) -> list[str]:
    done = subprocess.run(
        [TIANZHOU, "doctor", "-n", nameserver, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return [done.stdout] if "broker-a" in done.stdout else []


def await_remembered(memory: Path, count: int) -> None:
    patience, file = Patience(30), memory / "remembered.json"
    while not (file.exists() and len(json.loads(file.read_text())["missing"]) == count):
        assert not patience.is_over(), f"the NameServer does not remember {count} brokers"


def test_nameserver_killed_after_a_broker_vanished_still_reports_it(tmp_path: Path) -> None:
    port = spare_ports(1)
    nameserver, memory = f"{HOST}:{port}", tmp_path / "memory"
    names = Server(
        "nameserver", ["nameserver", "-p", str(port), "--data", str(memory)], tmp_path / "names"
    )
    settings = [f"{key}={value}" for key, value in {**SMALL_FILES, "name": "broker-a"}.items()]
    broker = Server(
        "broker",
        [
            "broker",
            "-n",
            nameserver,
            "-p",
            "0",
            "--data",
            str(tmp_path / "data"),
            "--no-http",
            *(part for line in settings for part in ("--set", line)),
        ],
        tmp_path / "broker",
    )
    try:
        for one in (names, broker):
            one.start()
            one.wait_ready()
        broker.kill()
        await_remembered(memory, 1)
        names.kill()
        names.start()
        names.wait_ready()
        (said,) = missing(nameserver)
        assert "missing" in said
        subprocess.run(
            [TIANZHOU, "broker", "forget", "broker-a", "-n", nameserver],
            timeout=300,
            check=True,
        )
        await_remembered(memory, 0)
        names.kill()
        names.start()
        names.wait_ready()
        assert not missing(nameserver), "a broker that an operator forgot stays forgotten"
    finally:
        for one in (broker, names):
            one.end()
