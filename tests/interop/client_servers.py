"""Our servers, for Java's clients."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from clients import server_process
from clients.server_process import ServerProcess

IMPATIENT = """
brokerClusterName = DefaultCluster
brokerName = broker-a
messageDelayLevel = 1s 1s 1s 1s 1s 1s
transactionTimeOut = 500
transactionCheckInterval = 500
enableLmq = true
enableMultiDispatch = true
"""
"""Retries and transaction checks come within seconds, not minutes. Light queues are on."""


@contextmanager
def up(directory: Path) -> Generator[ServerProcess]:
    """`tianzhou up` with default settings."""
    with _watched(server_process.up(directory, "--ephemeral")) as server:
        yield server


@contextmanager
def impatient(directory: Path) -> Generator[ServerProcess]:
    """NameServer and broker as separate processes, with short intervals."""
    names = server_process.run(["nameserver", "-p", "0"], directory / "nameserver")
    with _watched(names):
        settings = directory / "broker.conf"
        settings.write_text(IMPATIENT)
        command = ["broker", "-n", names.nameserver, "-p", "0", "-c", str(settings)]
        with _watched(server_process.run(command, directory / "broker")) as broker:
            yield broker


@contextmanager
def _watched(server: ServerProcess) -> Generator[ServerProcess]:
    """Check at the end that the server logged no error."""
    try:
        yield server
    finally:
        server.end()
    assert "Traceback" not in server.log(), server.log()
