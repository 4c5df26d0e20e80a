"""Scripts that Spark runs in place of a program, to change one thing about how it starts."""

import hashlib
import os
from pathlib import Path


def script_directory(program: Path) -> Path:
    """Return the directory for scripts that replace a program.

    Only the current user may write there, because Spark runs what the directory contains.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "tianzhou"
    mark = hashlib.sha256(str(program).encode()).hexdigest()[:12]
    return cache / f"{program.name}-{mark}"


def write(script: Path, text: str) -> None:
    """Write an executable script, replacing an older one in one step."""
    script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Another process may be starting from the script now, so it is never half-written.
    fresh = script.with_name(f".{script.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o700)
    fresh.replace(script)
