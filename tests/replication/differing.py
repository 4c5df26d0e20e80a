"""Commands whose processes differ from the others of a group: wrong clocks and an older version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUR_S = 3600


def with_clock(skew_s: int) -> list[str]:
    """A command whose process has such a clock."""
    path = os.pathsep.join([str(Path(__file__).parent / "skew"), os.environ.get("PYTHONPATH", "")])
    return ["env", f"PYTHONPATH={path.rstrip(os.pathsep)}", f"CLOCK_SKEW_S={skew_s}"]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def version_before(directory: Path) -> list[str]:
    """A command whose process runs the last version whose slaves went without a greeting when a
    master was silent. Skips aloud where the history is not there."""
    changed = _git(
        "log", "-1", "--format=%H", "-Sha_plain_peers: bool", "--",
        "src/tianzhou/replication/config.py",
    )  # fmt: skip
    command = _version_at(f"{changed}~1" if changed else "", directory)
    assert "ha_plain_peers: bool" in (directory / "src/tianzhou/replication/config.py").read_text()
    return command


def previous_commit(directory: Path) -> list[str]:
    """A command whose process runs the commit before this one. Skips aloud where there is none."""
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
