"""Which Java Spark uses."""

import os
import subprocess
from pathlib import Path

import pytest

from tianzhou.spark import sessions


def a_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_java_home_is_preferred(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(bare / "seventeen", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert sessions.provide_java() == str(home)


def test_java_that_is_too_old_is_skipped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = a_java(bare / "old", "1.8.0_412"), a_java(bare / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert sessions.provide_java() == str(new)
    assert os.environ["JAVA_HOME"] == str(new)


def test_packaged_java_is_used_if_no_other_is_found(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(sessions, "_of_path", lambda: None)
    home = sessions.provide_java()
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    asked = subprocess.run(command, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert "version" in asked.stderr
    assert Path(home).is_relative_to(bare / "cache")
    assert (Path(home) / "bin" / "java").stat().st_mode & 0o077 == 0


def test_missing_java_raises_with_advice(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_of_package", lambda: None)
    with pytest.raises(sessions.JavaNotFound, match=r"needs Java 17 or newer: set JAVA_HOME"):
        sessions.provide_java()
