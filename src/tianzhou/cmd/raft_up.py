"""`tianzhou up --replicas 3`: a whole Raft group on this machine, for experiments.

The NameServer runs in this process, every member in a separate one, which can be killed with -9.
Each has a directory below the data directory: `n0`, `n1` and so on, and `w` for a witness.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import TianzhouError
from tianzhou.broker.config import BrokerConfig
from tianzhou.cmd import serve
from tianzhou.cmd.http import PASSWORD_FILE, password_hash
from tianzhou.cmd.up_settings import UpOptions, UpSettings, with_memory
from tianzhou.nameserver.server import NameServer
from tianzhou.net.acceptor import spare_ports
from tianzhou.raft.messages import NodeId

GROUP: Final = "broker-a"
WITNESS: Final = "w"
PORTS_APART: Final = 10
"""Leaves room for the VIP port, two below a broker's port, and the Raft port, one above."""
_SHOWN_LINES: Final = 3
READY_S: Final = 30.0
STOP_S: Final = 4.0
_PAUSE_S: Final = 0.05


class Child:
    """The process of one member."""

    def __init__(self, name: NodeId, process: asyncio.subprocess.Process, ready: Path) -> None:
        self.name = name
        self.process = process
        self._ready = ready

    async def wait_ready(self) -> Mapping[str, object]:
        for _ in range(round(READY_S / _PAUSE_S)):
            if self._ready.exists():
                return json.loads(self._ready.read_text())
            if self.process.returncode is not None:
                log = self._ready.with_name("server.log")
                # An ephemeral directory is removed with the log: show how it ends.
                end = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
                raise TianzhouError(
                    f"member {self.name} exited with code {self.process.returncode}; "
                    f"{log} ends with: {' / '.join(end) or 'nothing'}"
                )
            await asyncio.sleep(_PAUSE_S)
        raise TianzhouError(f"member {self.name} did not become ready within {READY_S:.0f} s")


class Group:
    """The processes of all members. Owner: the event loop."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    async def close(self) -> None:
        """Stop all members; kill those that do not stop in time."""
        for child in self._children:
            if child.process.returncode is None:
                child.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(self._end(child) for child in self._children))

    async def _end(self, child: Child) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await child.process.wait()
        except TimeoutError:
            child.process.kill()
            await child.process.wait()


async def start(settings: UpSettings, wanted: UpOptions, clock: Clock) -> list[serve.Running]:
    names = NameServer(with_memory(settings.nameserver, wanted.directory), clock)
    nameserver = f"{settings.nameserver.bind_address}:{await names.start()}"
    host = settings.broker.host
    ports = _ports(settings.broker, wanted.replicas + wanted.has_witness)
    peers = [f"n{rank}={host}:{port + 1}" for rank, port in enumerate(ports)]
    if wanted.has_witness:
        ports, peers[-1] = ports[:-1], f"{WITNESS}={host}:{ports[-1] + 1}"
    is_new = not (wanted.directory / "n0").exists()
    group_arguments = [
        "--raft-group",
        GROUP,
        "--raft-peers",
        ";".join(peers),
        *(["--raft-new"] if is_new else []),
    ]
    witness = ["--raft-witness", WITNESS] if wanted.has_witness else []
    children = [
        await _start(
            wanted,
            f"n{rank}",
            [
                *settings.member_arguments,
                "--set",
                f"host={host}",
                "-p",
                str(port),
                "-n",
                nameserver,
                *group_arguments,
                *witness,
            ],
        )
        for rank, port in enumerate(ports)
    ]
    if wanted.has_witness:
        children.append(await _start(wanted, WITNESS, group_arguments))
    group, found = Group(children), list[Mapping[str, object]]()
    async with contextlib.AsyncExitStack() as failing:
        failing.push_async_callback(group.close)
        for child in children:
            found.append(await child.wait_ready())
        await _wait_master(names)
        failing.pop_all()
    members = {
        child.name: facts["broker"]
        for child, facts in zip(children, found, strict=True)
        if child.name != WITNESS
    }
    pages = [str(facts["http"]) for facts in found if "http" in facts]
    facts: dict[str, object] = {
        "nameserver": nameserver,
        "brokerName": GROUP,
        "members": members,
        "pid": os.getpid(),
        "pids": {child.name: child.process.pid for child in children},
        "data": str(wanted.directory),
    }
    if pages:
        # Each dashboard shows the whole group; the others serve when the first is down.
        facts |= {"http": pages[0], "pages": pages}
    text = ", ".join(f"{name} {address}" for name, address in members.items())
    text += f", witness {WITNESS}" if wanted.has_witness else ""
    seen = f", dashboard {pages[0]}" if pages else ""
    said = f"NameServer {nameserver}, group {GROUP}: {text}{seen}; tianzhou raft status {GROUP}"
    serve.announce(said, wanted.ready_file, facts)
    return [names, group]


async def _wait_master(names: NameServer) -> None:
    """Wait until a master is elected, so that clients can send once the ready file exists."""
    for _ in range(round(READY_S / _PAUSE_S)):
        if names.routes.master_of(GROUP) is not None:
            return
        await asyncio.sleep(_PAUSE_S)
    raise TianzhouError(f"the members of {GROUP} did not elect a master within {READY_S:.0f} s")


async def _start(wanted: UpOptions, name: NodeId, arguments: list[str]) -> Child:
    home = wanted.directory / name
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ready = home / "ready.json"
    ready.unlink(missing_ok=True)
    with (home / "server.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from tianzhou.cmd.main import main; main()",
            *(["witness"] if name == WITNESS else ["broker", *_http_arguments(wanted, name)]),
            "--data",
            str(home / "store"),
            "--raft-id",
            name,
            "--ready-file",
            str(ready),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Child(name, process, ready)


def _http_arguments(wanted: UpOptions, name: NodeId) -> list[str]:
    """Every member serves metrics and a dashboard; the first one on the chosen port."""
    http = wanted.http
    if http.port is None:
        return ["--no-http"]
    if not http.is_loopback:
        _hand_over_password(wanted.directory, wanted.directory / name / "store")
    port = ["--http-port", str(http.port)] if http.is_chosen else []
    return [
        "--http-host",
        http.host,
        *(port if name == "n0" else ["--http-port", "0"]),
        *(word for known in http.names for word in ("--http-name", known)),
    ]


def _hand_over_password(directory: Path, store: Path) -> None:
    """Give all members the same password, which is created and printed here, not in their logs."""
    kept = password_hash(directory)
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(store / PASSWORD_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(kept + "\n")


def _ports(config: BrokerConfig, replicas: int) -> list[int]:
    """The ports of the brokers; each uses the next port for Raft."""
    if config.port:
        return [config.port + PORTS_APART * rank for rank in range(replicas)]
    first = spare_ports(config.host, PORTS_APART * replicas) + 2
    return [first + PORTS_APART * rank for rank in range(replicas)]
