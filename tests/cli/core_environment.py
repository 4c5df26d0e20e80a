"""An environment that has only what `pip install tianzhou` installs, without extras.

A directory of links to the core dependencies, and an interpreter that sees it and nothing else:
optional modules are really absent, and so is everything that only developers have.
"""

import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]


def core_distributions() -> set[str]:
    """Names of the core dependencies and of everything that these depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found, left = set[str](), _needed(project["dependencies"])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _needed(distribution(name).requires or [])
    return found


def _needed(lines: list[str]) -> list[str]:
    wanted = map(Requirement, lines)
    return [
        canonicalize_name(one.name)
        for one in wanted
        if one.marker is None or one.marker.evaluate({"extra": ""})
    ]


def link_core(directory: Path) -> None:
    """Fill a new directory with links to the files of the core dependencies."""
    directory.mkdir()
    for name in core_distributions():
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (directory / top).symlink_to(str(found.locate_file(top)))


def python_with_core(directory: Path, code: str) -> list[str]:
    """The command line of an interpreter that runs the code in that environment."""
    paths = [str(ROOT / "src"), str(directory)]
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"]
