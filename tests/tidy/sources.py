"""What the tidiness tests look at: the files of this repository, their code, their comments."""

import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "tianzhou"
_BUILT = {".git", ".venv", ".hypothesis", ".ruff_cache", "__pycache__", "build", "dist"}


@cache
def all_files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed."""
    asked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if asked.returncode == 0:
        found = [ROOT / name for name in asked.stdout.decode().split("\0") if name]
    else:  # an archive, not a clone
        found = [p for p in ROOT.rglob("*") if not _BUILT & set(p.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in found if path.is_file()))


def python_files(*folders: str) -> list[Path]:
    """Python files of these folders, written by hand or generated."""
    return [
        path
        for path in all_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


def place_of(path: Path) -> str:
    """Where a file of ours stands in the package; modules beside it stand for themselves."""
    return path.relative_to(SRC if path.is_relative_to(SRC) else SRC.parent).as_posix()


def documents() -> list[Path]:
    return [path for path in all_files() if path.suffix == ".md"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def roots_imported(path: Path) -> set[str]:
    """The first words of all modules that a file imports by their full names."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every comment."""
    lines = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(lines):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
