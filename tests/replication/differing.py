"""Commands for processes that differ from the rest of a group: wrong clocks, older versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUR_S = 3600


def with_clock(skew_s: int) -> list[str]:
    """A command whose process has a clock that is wrong by this much."""
    path = os.pathsep.join([str(Path(__file__).parent / "skew"), os.environ.get("PYTHONPATH", "")])
    return ["env", f"PYTHONPATH={path.rstrip(os.pathsep)}", f"CLOCK_SKEW_S={skew_s}"]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def version_before(directory: Path) -> list[str]:
    """A command that runs the last version whose slaves replicated without a greeting when a master
    was silent. Skips with a reason if the history is not available."""
    changed = _git(
        "log",
        "-1",
        "--format=%H",
        "-Sha_plain_peers: bool",
        "--",
        "src/tianzhou/replication/config.py",
    )
    command = _version_at(f"{changed}~1" if changed else "", directory)
    assert "ha_plain_peers: bool" in (directory / "src/tianzhou/replication/config.py").read_text()
    return command


def previous_commit(directory: Path) -> list[str]:
    """A command that runs the commit before this one. Skips with a reason if it is missing."""
    return _version_at("HEAD~1", directory)


def _version_at(revision: str, directory: Path) -> list[str]:
    commit = _git("rev-parse", "--verify", "--quiet", revision) if revision else ""
    if not commit:
        pytest.skip("the history of this clone does not reach back to the version before")
    directory.mkdir()
    packed = directory / "before.tar"
    assert _git("archive", "--output", str(packed), commit, "src") == ""
    subprocess.run(["tar", "-xf", str(packed), "-C", str(directory)], check=True)
    command = ["env", f"PYTHONPATH={directory / 'src'}"]
    where = [*command, sys.executable, "-c", "import tianzhou; print(tianzhou.__file__)"]
    loaded = subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert Path(loaded.strip()).is_relative_to(directory), f"{loaded} is not the older version"
    return command
