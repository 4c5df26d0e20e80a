"""Scripts that stand in for a program which Spark starts, and change one thing about its start."""

import hashlib
import os
from pathlib import Path


def script_directory(program: Path) -> Path:
    """Where stand-ins for it lie: a directory of this user alone, because whoever can write there
    could choose what Spark runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "tianzhou"
    mark = hashlib.sha256(str(program).encode()).hexdigest()[:12]
    return cache / f"{program.name}-{mark}"


def write(script: Path, text: str) -> None:
    script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Another process may be starting from it at this moment.
    fresh = script.with_name(f".{script.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o700)
    fresh.replace(script)
