"""A real `tianzhou up` process, and a witness: a healthy client that must not be disturbed."""

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raw_client import HungUp, RawClient, pull_of, send_v2
from stalls import stall_s, take_sample

from tianzhou.testing.kit.patience import Patience
from tianzhou.testing.kit.server_process import ServerProcess

START_S: Final = 20.0
NOTICED_S: Final = 1.0
"""A broker that needs longer for a response has stalled; stalls.py measures the time."""
RESPONSE_S: Final = 300.0
"""In wall-clock time. A response that takes longer is lost, however busy the machine is."""
PAUSE_S: Final = 0.01
STALL_CODE: Final = """
import signal, time
def stall(*_):
    start = time.thread_time()
    while time.thread_time() - start < {busy_s}:
        pass
signal.signal(signal.SIGUSR1, stall)
"""
"""Makes the thread of the event loop use CPU time on SIGUSR1, to test the witness itself."""


@dataclass(slots=True)
class Live:
    """A running `tianzhou up`."""

    process: subprocess.Popen[bytes]
    nameserver: str
    broker: str
    data: Path
    log: Path
    http: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def to_broker(self) -> RawClient:
        return RawClient(self.broker)

    def to_nameserver(self) -> RawClient:
        return RawClient(self.nameserver)

    def rss_bytes(self) -> int:
        return self._memory("VmRSS")

    def heap_bytes(self) -> int:
        """Memory without mapped files, which the system reclaims when it needs memory."""
        return self._memory("RssAnon")

    def _memory(self, kind: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {kind}")

    def fd_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def socket_count(self) -> int:
        """The number of open sockets, without files: the store opens and closes those."""
        count = 0
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                count += str(path.readlink()).startswith("socket:")
        return count


@contextmanager
def running(
    place: Path, *options: str, ephemeral: bool = True, files: int = 0, stall_s: float = 0.0
) -> Generator[Live]:
    """Run `tianzhou up` on free ports, with its log in a file, and stop it at the end.

    Sends that wait too long are not rejected: the witness measures how long a response takes, and
    an attack must get its responses on a busy machine too.

    With `files` the process may open only that many, as after `ulimit -n`. With `stall_s` its
    event loop stalls for that much CPU time on each SIGUSR1.
    """
    low = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({files}, {files})); "
    code = "from tianzhou.cmd.main import main; main()"
    if stall_s:
        code = STALL_CODE.format(busy_s=stall_s) + code
    stored = ("--ephemeral",) if ephemeral else ()
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    up = ["up", *stored, *ports, "--set", "fail_fast=false", *options, "--ready-file"]
    server = ServerProcess(
        "up",
        [sys.executable, "-c", low + code if files else code, *up],
        place,
        cwd=Path.cwd(),
        env=os.environ | {"TMPDIR": str(place)},
    )
    server.start()
    try:
        facts = server.wait_ready(START_S)
        yield Live(
            server.process,
            facts["nameserver"],
            facts["broker"],
            Path(facts["data"]),
            server.log_path,
            facts.get("http", ""),
        )
    finally:
        if server.is_alive:
            server.stop(within_s=300)


def wait_for(condition: Callable[[], bool], wait_s: float = 10.0) -> None:
    patience = Patience(wait_s)
    while not condition():
        assert not patience.is_over(), "the condition was not met in time"
        time.sleep(0.02)


def allow_many_files() -> int:
    """Raise the limit of open files to what the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class Witness:
    """Sends and pulls in a thread all the time. Every response must be correct and in time."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._stop = threading.Event()
        self._problems: list[str] = []
        self._rounds = 0
        self.slowest_s = 0.0
        self._slowest = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._live.to_broker() as sender, self._live.to_broker() as puller:
                while not self._stop.wait(PAUSE_S):
                    self._round(sender, puller)
        except (OSError, HungUp) as error:
            self._problems.append(f"the witness was disturbed: {error!r}")

    def _round(self, sender: RawClient, puller: RawClient) -> None:
        body = b"round %d" % self._rounds
        start = take_sample(self._live.pid)
        sent = sender.ask(310, send_v2("Witness", queue_id=0), body, wait_s=RESPONSE_S)
        middle = take_sample(self._live.pid)
        if sent.code:
            self._problems.append(f"a send got {sent.code}: {sent.remark}")
            return
        offset = int(sent.header.ext["queueOffset"])
        pull = pull_of("Witness", offset=offset, consumerGroup="witnesses", sysFlag="6")
        found = puller.ask(11, pull, wait_s=RESPONSE_S)
        end = take_sample(self._live.pid)
        if found.code or body not in found.body:
            self._problems.append(f"a pull got {found.code}: {found.remark}")
        for before, after in ((start, middle), (middle, end)):
            if (took_s := stall_s(before, after)) > self.slowest_s:
                self.slowest_s, self._slowest = took_s, f"from {before} to {after}"
        self._rounds += 1

    def check(self) -> None:
        """Check that it has sent and pulled since the last check, without any problem."""
        assert self._live.process.poll() is None, self._live.log.read_text()[-3000:]
        before = self._rounds
        wait_for(lambda: self._rounds > before + 1 or bool(self._problems), START_S)
        assert not self._problems, self._problems[:3]
        slowest, self.slowest_s = self.slowest_s, 0.0
        assert slowest < NOTICED_S, f"a response took {slowest:.2f} s, {self._slowest}"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
