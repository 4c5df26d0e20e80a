"""Java programs and libraries from Maven: fetched and compiled once, for all test processes."""

import fcntl
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD_SECONDS_MAX: Final = 540
"""The first run downloads about 100 MB for each version."""


def classpath(source: Path, version: str) -> str:
    """The class path of a directory with a pom, built for this RocketMQ when a file has changed.
    Skips with a reason if that is not possible."""
    for tool in ("mvn", "javac", "java"):
        if shutil.which(tool) is None:
            pytest.skip(f"NOTHING WAS PROVEN with RocketMQ {version}: {tool} is not on the PATH")
    target = ROOT / "build" / "interop" / source.name / version
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run on several processes
        stamp, state = target / "built-from", _state_of(source)
        if not stamp.exists() or stamp.read_text() != state:
            _run(source, version, target)
            stamp.write_text(state)
    return f"{target / 'classes'}:{target / 'jars'}/*"


def _state_of(source: Path) -> str:
    files = sorted(path for path in source.rglob("*") if path.suffix in (".java", ".xml"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _run(source: Path, version: str, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(source / "pom.xml")]
    command += [f"-Drocketmq.version={version}", f"-Dprobe.build={target}"]
    command += ["compile", "dependency:copy-dependencies"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        pytest.skip(f"NOTHING WAS PROVEN with RocketMQ {version}: Maven took too long")
    if "COMPILATION ERROR" in ran.stdout:
        pytest.fail(ran.stdout)
    if ran.returncode:
        reason = next((row for row in ran.stdout.splitlines() if "ERROR" in row), "no reason given")
        pytest.skip(f"NOTHING WAS PROVEN with RocketMQ {version}: Maven says {reason[:300]}")
