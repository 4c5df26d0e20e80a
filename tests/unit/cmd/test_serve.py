import asyncio
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from tianzhou.base.errors import UsageError
from tianzhou.cmd import ready_file, serve
from tianzhou.cmd.broker import broker
from tianzhou.cmd.nameserver import nameserver
from tianzhou.cmd.up import up


class Part:
    """A server that notes that it was stopped; or hangs, or fails."""

    def __init__(self, name: str, stopped: list[str], *, hangs: bool = False) -> None:
        self._name = name
        self._stopped = stopped
        self._hangs = hangs

    async def close(self) -> None:
        self._stopped.append(self._name)
        if self._hangs:
            await asyncio.Event().wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_in_reverse_order_at_a_signal(number: signal.Signals) -> None:
    stopped: list[str] = []

    async def start() -> list[serve.Running]:
        asyncio.get_running_loop().call_soon(signal.raise_signal, number)
        return [Part("names", stopped), Part("broker", stopped)]

    serve.run(start)
    assert stopped == ["broker", "names"]


def test_serve_gives_up_on_a_server_that_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STOP_S", 0.01)
    stopped: list[str] = []

    async def start() -> list[serve.Running]:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        return [Part("names", stopped), Part("broker", stopped, hangs=True)]

    with pytest.raises(TimeoutError, match=r"not everything stopped within 0\.01 s"):
        serve.run(start)
    assert stopped == ["broker"]


def test_serve_raises_the_error_of_a_failed_start() -> None:
    async def start() -> list[serve.Running]:
        raise OSError(98, "address already in use")

    with pytest.raises(OSError, match="already in use"):
        serve.run(start)


def test_ready_file_replaces_the_old_one_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("of the last run, and much longer than what comes now")
    ready_file.write(path, {"broker": "h:1", "pid": 7})
    assert json.loads(path.read_text()) == {"broker": "h:1", "pid": 7}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("server", [up, nameserver, broker], ids=lambda server: server.name)
def test_ready_file_in_a_missing_directory_stops_the_start(
    server: click.Command, tmp_path: Path
) -> None:
    """Nothing has started by then: no store is made."""
    arguments = ["--ready-file", str(tmp_path / "missing" / "ready")]
    outcome = CliRunner().invoke(server, arguments)
    assert outcome.exit_code == 2
    assert "missing does not exist; create it first" in outcome.output


def test_broker_with_an_invalid_nameserver_reports_the_option(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(broker, ["-n", "a:b:c", "--data", str(tmp_path / "data")])
    assert "(from -n/--nameserver)" in f"{outcome.output}{outcome.exception}"
    assert not (tmp_path / "data").exists()


def test_announce_prints_a_line_and_writes_the_ready_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.announce("Broker h:1", None, {})
    assert capsys.readouterr().err == "Broker h:1; press Ctrl-C to stop\n"
    assert list(tmp_path.iterdir()) == []
    serve.announce("Broker h:1", tmp_path / "ready", {"broker": "h:1"})
    assert json.loads((tmp_path / "ready").read_text()) == {"broker": "h:1"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_warn_if_exposed_on_a_local_address_prints_nothing(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.warn_if_exposed(host, "the Broker", serve.OPEN_BROKER)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.example.com"])
def test_warn_if_exposed_on_a_public_address_prints_a_warning(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.warn_if_exposed(host, "the Broker", serve.OPEN_BROKER, serve.OPEN_NAMES)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"tianzhou: the Broker on {host} is reachable from other machines")
    assert "can read, write and delete messages, and register a broker" in line


@pytest.mark.parametrize(
    ("mode", "refused"), [(0o700, False), (0o755, False), (0o770, True), (0o702, True)]
)
def test_directory_writable_by_others_is_rejected(tmp_path: Path, mode: int, refused: bool) -> None:
    serve.refuse_shared(tmp_path / "to be made")
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(mode)
    if refused:
        with pytest.raises(UsageError, match=rf"mode {mode:o}\); run: chmod go-w {directory}"):
            serve.refuse_shared(directory)
    else:
        serve.refuse_shared(directory)


def test_prepare_rejects_a_python_without_assertions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=1))
    with pytest.raises(SystemExit, match="do not run with -O"):
        serve.prepare(as_json=False, log_file=None)
