"""Java RocketMQ's own store, driven by `java/…/StoreProbe.java`: how to build and use it."""

import json
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import maven

from tianzhou.store.config import StoreConfig

VERSIONS: Final = ("4.9.8", "5.3.3", "5.4.0")
"""The last 4.9; the last 5.3 that is complete on Maven Central; the newest."""

ANSWER_SECONDS_MAX: Final = 60

_JAVA: Final = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # It unmaps files with methods that newer Java versions hide.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)

Line = dict[str, Any]


def build(version: str) -> str:
    """The class path of the probe for this RocketMQ version."""
    return maven.classpath(Path(__file__).parent / "java", version)


class Put(NamedTuple):
    """A message for Java to store."""

    topic: str
    queue_id: int
    body: str
    properties: dict[str, str]

    @property
    def command(self) -> str:
        pairs = [f"{name}={value}" for name, value in self.properties.items()]
        return "\t".join(["put", self.topic, str(self.queue_id), self.body, *pairs])


class Answers(NamedTuple):
    """The output of one run of Java's store."""

    messages: list[Line]
    """Every message of every queue."""
    found: dict[tuple[str, str], list[Line]]
    """Messages found by topic and key."""
    placed: list[Line]
    """The result of each put."""


def _same_form(line: Line) -> Line:
    """Normalise values that have several spellings."""
    for name in {"bornHost", "storeHost"} & line.keys():
        address, _, port = line[name].partition(" ")
        line[name] = f"{ip_address(address)} {port}"
    line.get("properties", {}).pop("__CRC32#", None)
    return line


class Session:
    """An open store in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.first = self._line()

    def _line(self) -> Line:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        assert text, f"the store ended without a response:\n{self._end()}"
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
        """End the store like kill -9: no flush, no checkpoint, the abort marker stays."""
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
        """`record_crc`: let it write and require checksums of whole records (5.x only)."""
        sizes = (
            config.commit_log_file_bytes,
            config.consume_queue_file_bytes,
            config.index_slots,
            config.index_entries,
        )
        process = subprocess.Popen(
            [
                *_JAVA,
                f"-Duser.home={self._home}",
                "-cp",
                self._classpath,
                "tianzhou.interop.StoreProbe",
                str(root),
                *map(str, sizes),
                *(["record-crc"] if record_crc else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
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
