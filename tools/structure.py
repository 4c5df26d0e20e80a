"""Measures the structure and the words of this repository: the numbers behind `make house`, and the
limits in tests/tidy/test_ratchets.py. Everything is read from the files, nothing is imported."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SRC: Final = ROOT / "src" / "tianzhou"

POSITIONAL_MAX: Final = 4
ATTRIBUTES_MAX: Final = 12
DATA_BASES: Final = {
    "Enum",
    "ExtFields",
    "IntEnum",
    "NamedTuple",
    "Protocol",
    "StrEnum",
    "Struct",
    "TypedDict",
}
TABLE_ENTRIES: Final = re.compile(
    r"admin/(commands/)?\w+\.py|cmd/\w+\.py|dashboard/pages/\w+\.py|broker/\w+/(build|slice)\.py"
)
"""Entries of a table: commands, dashboard pages and the builders of slices are imported once, by
the table that lists them."""
MERGEABLE: Final = ("broker/", "client/", "spark/", "replication/", "store/")
"""Packages whose modules were once cut by size."""
SOCKET_CALLS: Final = {
    "accept",
    "create_connection",
    "create_server",
    "open_connection",
    "sock_accept",
    "sock_connect",
    "start_server",
}
BANNED: Final = re.compile(
    r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|anew|for ever|so many|mend(?:s|ed)?)\b"
    r"|(?<![Tt]here )\b(?:are|is) none\b"
    r"|\b[Mm]oments?\b"
    r"|(?<![Tt]here )\bis no (?!longer\b|more\b)[a-z]\w*"
)
"""The words of a private language. Case matters: `is None` is Python."""

CODE: Final = re.compile(r"`[^`\n]+`")


class Place(NamedTuple):
    """A line of a file, and what was found there."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@cache
def modules() -> tuple[Path, ...]:
    return tuple(sorted(SRC.rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def line_count() -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in modules())


# Shapes


def long_signatures() -> Iterator[Place]:
    """Functions with more than four positional parameters; `self` and `cls` do not count, and
    click passes the options of a command by name."""
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_command(node):
                given = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
                count = len(given) - (given[:1] in (["self"], ["cls"]))
                if count > POSITIONAL_MAX:
                    yield Place(name_of(path), node.lineno, f"{node.name} has {count}")


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = [ast.unparse(mark).partition("(")[0] for mark in node.decorator_list]
    return any(mark.startswith("click.") or mark.endswith((".command", ".group")) for mark in marks)


def large_classes() -> Iterator[Place]:
    """Classes with more than twelve attributes; classes of plain data may have more."""
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not _is_data(node):
                found = set(_attributes(node))
                if len(found) > ATTRIBUTES_MAX:
                    yield Place(name_of(path), node.lineno, f"{node.name} has {len(found)}")


def _is_data(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    marks = [ast.unparse(mark).partition("(")[0] for mark in node.decorator_list]
    return bool(bases & DATA_BASES) or any(mark.endswith("dataclass") for mark in marks)


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


# Imports


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def importers() -> dict[str, set[str]]:
    """The modules that import each module. A name in a table of lazily loaded names counts."""
    names = {module_name(path) for path in modules()}
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        mine = module_name(path)
        for used in _imported(path, names):
            if used != mine:
                found[used].add(mine)
    return dict(found)


def _imported(path: Path, names: set[str]) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
            yield from inner or ({node.module} & names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield node.value


def single_importers() -> Iterator[Place]:
    """Modules that only one other module imports, in the packages that house large parts; entries
    of tables are not counted."""
    used = importers()
    for path in modules():
        place = path.relative_to(SRC).as_posix()
        is_table_entry = TABLE_ENTRIES.fullmatch(place) is not None
        if path.name.startswith("_") or is_table_entry or not place.startswith(MERGEABLE):
            continue
        by = used.get(module_name(path), set())
        if len(by) == 1:
            yield Place(name_of(path), 1, f"only {next(iter(by))} imports it")


def store_users() -> list[str]:
    """Modules outside the store and the test kit that know the whole `MessageStore`."""
    return [
        name_of(path)
        for path in modules()
        if path.relative_to(SRC).parts[0] not in ("store", "testing")
        and any(
            (isinstance(node, ast.Name) and node.id == "MessageStore")
            or (isinstance(node, ast.alias) and node.name == "MessageStore")
            for node in nodes_of(path)
        )
    ]


def socket_files() -> list[str]:
    """Files that open or accept connections; the test kit excepted."""
    return [
        name_of(path)
        for path in modules()
        if path.relative_to(SRC).parts[0] != "testing"
        and any(isinstance(node, ast.Call) and _opens_socket(node.func) for node in nodes_of(path))
    ]


def _opens_socket(function: ast.expr) -> bool:
    text = ast.unparse(function)
    return text == "socket.socket" or (
        isinstance(function, ast.Attribute) and function.attr in SOCKET_CALLS
    )


# Words


def formatter_exemptions() -> Iterator[Place]:
    for folder in ("src", "tests", "tools", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for line, text in comments_of(path):
                if re.search(r"fmt:\s*(skip|off)", text):
                    yield Place(name_of(path), line, text)


@cache
def comments_of(path: Path) -> tuple[tuple[int, str], ...]:
    source = io.StringIO(path.read_text(encoding="utf-8")).readline
    return tuple(
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(source)
        if token.type == tokenize.COMMENT
    )


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def banned_user_visible() -> list[Place]:
    """Documents, templates, help texts, and every string of the product that is no docstring."""
    found = [place for path in documents() for place in _banned_lines(path)]
    for path in sorted(SRC.rglob("*.html")):
        found += _banned_lines(path)
    for path in modules():
        is_command = path.relative_to(SRC).parts[0] in ("admin", "cmd")
        for node, text in _strings(path):
            if is_command or not isinstance(node, ast.Expr):
                found += _banned_in(path, node.lineno, text)
    return found


def banned_everywhere() -> list[Place]:
    """User-visible text, comments, docstrings and the strings of tests."""
    found = [place for path in documents() for place in _banned_lines(path)]
    for path in sorted(SRC.rglob("*.html")):
        found += _banned_lines(path)
    for folder in ("src", "tests", "tools", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name in ("structure.py", "test_ratchets.py"):  # they quote the words
                continue
            for node, text in _strings(path):
                found += _banned_in(path, node.lineno, text)
            for line, text in comments_of(path):
                found += _banned_in(path, line, text)
    return found


def _strings(path: Path) -> Iterator[tuple[ast.expr | ast.Expr, str]]:
    """The strings of a file; docstrings come as the statements that they are. A string without a
    space is a name: of a field, an option, a state."""
    statements = {
        node.value: node
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield statements.get(node, node), node.value


def _banned_in(path: Path, line: int, text: str) -> list[Place]:
    """Names in code type are quoted, not used: keys of files and fields never change."""
    joined = " ".join(CODE.sub("`x`", text).split())
    return [Place(name_of(path), line, found[0]) for found in BANNED.finditer(joined)]


def _banned_lines(path: Path) -> list[Place]:
    """Across the ends of lines; names in code type are quoted, not used."""
    text = path.read_text(encoding="utf-8")
    flat = CODE.sub(lambda code: "x" * len(code[0]), text)
    flat = re.sub(r"\n(?=\S)", " ", flat)
    return [
        Place(name_of(path), text.count("\n", 0, found.start()) + 1, found[0])
        for found in BANNED.finditer(flat)
    ]


def by_package(places: Iterator[Place]) -> Counter[str]:
    return Counter(place.path.split("/")[2] for place in places)
