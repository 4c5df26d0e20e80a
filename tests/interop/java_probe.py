"""Java RocketMQ's own store, driven by `java/…/StoreProbe.java`: building it, talking to it."""

import fcntl
import json
import shutil
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tianzhou.store.config import StoreConfig

VERSIONS: Final = ("4.9.8", "5.3.3", "5.4.0")
"""The last of 4.9; the last of 5.3 that Maven Central has all parts of; the newest."""

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).parent / "java"
BUILD_SECONDS_MAX: Final = 540
"""The first time it downloads about 100 MB for each version."""
ANSWER_SECONDS_MAX: Final = 60

_JAVA: Final = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    # It unmaps files by methods that newer Java versions hide.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)  # fmt: skip

Line = dict[str, Any]


def build(version: str) -> str:
    """The class path of the probe with this RocketMQ; compiled when its source has changed."""
    for tool in ("mvn", "javac", "java"):
        if shutil.which(tool) is None:
            pytest.skip(f"NOTHING WAS PROVEN against RocketMQ {version}: {tool} is not on the PATH")
    target = ROOT / "build" / "interop" / version
    stamp, state = target / "built-from", _state_of_source()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{version}.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # the tests run on several processes
        if not stamp.exists() or stamp.read_text() != state:
            _run_maven(version, target)
            stamp.write_text(state)
    return f"{target / 'classes'}:{target / 'jars'}/*"


def _state_of_source() -> str:
    files = sorted(path for path in SOURCE.rglob("*") if path.suffix in (".java", ".xml"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _run_maven(version: str, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(SOURCE / "pom.xml")]
    command += [f"-Drocketmq.version={version}", f"-Dprobe.build={target}"]
    command += ["compile", "dependency:copy-dependencies"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        pytest.skip(f"NOTHING WAS PROVEN against RocketMQ {version}: Maven took too long")
    if "COMPILATION ERROR" in ran.stdout:
        pytest.fail(ran.stdout)
    if ran.returncode:
        reason = next((row for row in ran.stdout.splitlines() if "ERROR" in row), "no reason given")
        pytest.skip(f"NOTHING WAS PROVEN against RocketMQ {version}: Maven says {reason[:300]}")


class Put(NamedTuple):
    """A message that Java is to store."""

    topic: str
    queue_id: int
    body: str
    properties: dict[str, str]

    @property
    def command(self) -> str:
        pairs = [f"{name}={value}" for name, value in self.properties.items()]
        return "\t".join(["put", self.topic, str(self.queue_id), self.body, *pairs])


class Answers(NamedTuple):
    """What one run of Java's store said."""

    messages: list[Line]
    """Every message of every queue."""
    found: dict[tuple[str, str], list[Line]]
    """Topic and key to the messages that were found by it."""
    placed: list[Line]
    """What was answered to each put."""


def _same_form(line: Line) -> Line:
    """What has several spellings, in ours."""
    for name in {"bornHost", "storeHost"} & line.keys():
        address, _, port = line[name].partition(" ")
        line[name] = f"{ip_address(address)} {port}"
    line.get("properties", {}).pop("__CRC32#", None)
    return line


class Session:
    """An open store in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.first = self._line()

    def _line(self) -> Line:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        assert text, f"the store ended without an answer:\n{self._end()}"
        return _same_form(json.loads(text))

    def _end(self) -> str:
        return self._process.communicate(timeout=ANSWER_SECONDS_MAX)[1][-8_000:]

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def dump(self) -> list[Line]:
        self._say("dump")
        lines = iter(self._line, {"dumped": True})
        return [line for line in lines if "msgId" in line]

    def find(self, topic: str, key: str) -> list[Line]:
        self._say(f"find\t{topic}\t{key}")
        found: list[Line] = []
        while "found" not in (line := self._line()):
            found.append(line)
        assert len(found) == line["found"]
        return found

    def put(self, message: Put) -> Line:
        self._say(message.command)
        return self._line()

    def halt(self) -> None:
        """End it as kill -9 would: no flush, no checkpoint, the marker stays."""
        self._say("halt")
        self._end()
        assert self._process.returncode == 9

    def close(self) -> None:
        rest, errors = self._process.communicate(timeout=ANSWER_SECONDS_MAX)
        assert (self._process.returncode, rest) == (0, '{"closed": true}\n'), errors[-8_000:]


class JavaStore:
    """Opens directories with Java's store."""

    def __init__(self, classpath: str, home: Path) -> None:
        self._classpath = classpath
        self._home = home / "java-home"
        self._home.mkdir()

    @contextmanager
    def session(
        self, root: Path, config: StoreConfig, *, record_crc: bool = False
    ) -> Generator[Session]:
        """`record_crc`: let it write and demand checksums of whole records (5.x only)."""
        sizes = (
            config.commit_log_file_bytes, config.consume_queue_file_bytes,
            config.index_slots, config.index_entries,
        )  # fmt: skip
        process = subprocess.Popen(
            [
                *_JAVA, f"-Duser.home={self._home}", "-cp", self._classpath,
                "tianzhou.interop.StoreProbe", str(root), *map(str, sizes),
                *(["record-crc"] if record_crc else []),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            try:
                yield Session(process)
            finally:
                process.kill()

    def run(
        self,
        root: Path,
        config: StoreConfig,
        *,
        keys: Iterable[tuple[str, str]] = (),
        puts: Sequence[Put] = (),
        halt: bool = False,
        record_crc: bool = False,
    ) -> Answers:
        """Open, put, read everything, find these keys, and close or halt."""
        with self.session(root, config, record_crc=record_crc) as session:
            assert "opened" in session.first, session.first
            placed = [session.put(message) for message in puts]
            messages = session.dump()
            found = {(topic, key): session.find(topic, key) for topic, key in keys}
            if halt:
                session.halt()
            else:
                session.close()
        return Answers(messages, found, placed)
