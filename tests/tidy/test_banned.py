"""Calls that turn data into code, or hand it to a shell: never in what we ship (S19)."""

import ast
from pathlib import Path

import pytest
from sources import name_of, nodes_of, python_files, roots_imported

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "subprocess", "pty"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("os", "spawnl"),
    ("os", "spawnv"),
    ("os", "execv"),
    ("os", "execvp"),
    ("os", "posix_spawn"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("numpy", "load"),
    ("np", "load"),
    ("shutil", "unpack_archive"),
    ("tempfile", "mktemp"),
}
ALLOWED = {
    # Where, what, and why that can't hurt.
    ("src/tianzhou/testing", "subprocess"): "the test kit starts processes; it is not for servers",
    (
        "src/tianzhou/admin/commands/own_broker.py",
        "subprocess",
    ): "starts this very program, without a shell and with no word that came from elsewhere",
}


def banned_in(path: Path) -> list[str]:
    found = [f"imports {name}" for name in roots_imported(path) & MODULES]
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(f"calls {node.func.id} in line {node.lineno}")
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if (node.func.value.id, node.func.attr) in METHODS:
                found.append(f"calls {ast.unparse(node.func)} in line {node.lineno}")
            if any(word.arg == "allow_pickle" for word in node.keywords):
                found.append(f"allows pickles in line {node.lineno}")
    return found


def is_allowed(path: Path, what: str) -> bool:
    return any(name_of(path).startswith(place) and word in what for place, word in ALLOWED)


@pytest.mark.parametrize("path", python_files("src"), ids=name_of)
def test_s19_source_never_executes_data_as_code(path: Path) -> None:
    assert not [what for what in banned_in(path) if not is_allowed(path, what)]


MAPPED = {
    # Where files are mapped, and why a page that can't be read does no harm there.
    "src/tianzhou/store/descriptors.py": "no reader of log, queues or index uses the mapping",
    "src/tianzhou/store/preflight.py": "memory without a file",
}


@pytest.mark.parametrize("path", python_files("src"), ids=name_of)
def test_source_reads_no_file_through_mmap(path: Path) -> None:
    """A bad sector, or a file that is shortened, kills a process that reads it so (SIGBUS)."""
    calls = [ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)]
    mapping = [call for call in calls if call.endswith(("mmap.mmap", ".memmap", "open_memmap"))]
    assert not mapping or name_of(path) in MAPPED


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from subprocess import run",
        "eval(x)",
        "import os\nos.system(x)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(f)",
    ],
)
def test_s19_ban_check_detects_planted_cases(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert banned_in(path)
