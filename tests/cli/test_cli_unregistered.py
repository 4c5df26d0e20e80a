"""A broker that no NameServer knows of says so at once, on the error stream and in its log."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.slow

TIANZHOU: Final = str(Path(sys.executable).with_name("tianzhou"))
UNRESOLVED: Final = "the host name 'nowhere.invalid' cannot be resolved"
REFUSED: Final = "it cannot be reached (Connection refused)"


@pytest.mark.parametrize(
    ("address", "server", "reason"),
    [
        ("nowhere.invalid", "nowhere.invalid:9876", UNRESOLVED),
        ("127.0.0.1:1", "127.0.0.1:1", REFUSED),
    ],
    ids=["unresolved", "refused"],
)
def test_broker_without_a_nameserver_warns_and_is_not_ready(
    address: str, server: str, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "broker.log"
    arguments = [
        "broker",
        "-n",
        address,
        "-p",
        "0",
        "--http-port",
        "0",
        "--log-file",
        str(log),
        "--data",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(
        [TIANZHOU, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            serving = re.match(r"Broker .*, dashboard (\S+);", process.stderr.readline())
            assert serving is not None
            warning = process.stderr.readline()
            with pytest.raises(HTTPError) as refusal:
                urlopen(f"{serving[1]}/readyz", timeout=60)
            answer = json.loads(refusal.value.read())
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            process.wait(timeout=60)
        finally:
            process.kill()
    assert warning.startswith("tianzhou: this broker is registered with no NameServer")
    assert (process.returncode, refusal.value.code) == (0, 503)
    for told in (warning, answer["reasons"][0], answer["alarms"][0], log.read_text()):
        assert f"{server}: {reason}" in told
    assert "kind=unregistered" in log.read_text()


def test_broker_without_a_configured_nameserver_warns(tmp_path: Path) -> None:
    arguments = ["broker", "-p", "0", "--no-http", "--data", str(tmp_path / "data")]
    unset = {"TIANZHOU_NAMESERVER", "TIANZHOU_NAMESERVERS", "NAMESRV_ADDR"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    with subprocess.Popen(
        [TIANZHOU, *arguments], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("Broker 127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            warning = process.stderr.readline()
            process.wait(timeout=60)
        finally:
            process.kill()
    assert warning == (
        "tianzhou: no NameServer is configured, so clients cannot find this broker; pass "
        "--nameserver HOST:PORT, or set TIANZHOU_NAMESERVER or NAMESRV_ADDR\n"
    )
