"""Building `java-client/`: the probe and all that RocketMQ's clients and `mqadmin` need."""

import fcntl
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

FIVE: Final = "5.3.3"
"""The last of 5.3 that Maven Central has all parts of."""
FOUR: Final = "4.9.8"

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).parent / "java-client"
BUILD_SECONDS_MAX: Final = 540
"""The first time it downloads about 60 MB for each version."""

JAVA: Final = (
    "java", "-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


def build(version: str) -> str:
    """The class path with this RocketMQ; compiled when the source has changed."""
    for tool in ("mvn", "javac", "java"):
        if shutil.which(tool) is None:
            pytest.skip(f"NOTHING WAS PROVEN with the client {version}: {tool} is not on the PATH")
    target = ROOT / "build" / "interop-client" / version
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run on several processes
        stamp, state = target / "built-from", _state_of_source()
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
        pytest.skip(f"NOTHING WAS PROVEN with the client {version}: Maven took too long")
    if "COMPILATION ERROR" in ran.stdout:
        pytest.fail(ran.stdout)
    if ran.returncode:
        reason = next((row for row in ran.stdout.splitlines() if "ERROR" in row), "no reason given")
        pytest.skip(f"NOTHING WAS PROVEN with the client {version}: Maven says {reason[:300]}")
