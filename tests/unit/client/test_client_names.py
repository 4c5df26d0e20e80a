"""The public names: what type checkers see is what there is, and nothing is loaded before it is
used."""

import ast
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tianzhou.client
import tianzhou.client.sync

MODULES = [tianzhou.client, tianzhou.client.sync]


def declared(path: Path) -> dict[str, str]:
    """Names that the module imports for type checkers, with the modules they come from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("module", MODULES)
def test_public_names_of_the_client_can_be_imported(module: object) -> None:
    names = declared(Path(str(getattr(module, "__file__", ""))))
    assert set(names) == set(dir(module)) == set(getattr(module, "__all__", ()))
    for name, place in names.items():
        assert getattr(module, name) is getattr(import_module(place), name), name
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = getattr(module, "Nonsense")  # noqa: B009


def test_asyncio_and_blocking_clients_have_the_same_names() -> None:
    assert set(dir(tianzhou.client)) == set(dir(tianzhou.client.sync))


@pytest.mark.parametrize("module", MODULES)
def test_help_of_the_client_shows_its_classes(module: object) -> None:
    shown = pydoc.plain(pydoc.render_doc(module))
    for name in ("Producer", "PushConsumer", "Message", "ProducerOptions"):
        assert f"class {name}(" in shown, name


def test_producer_import_loads_neither_consumers_nor_servers() -> None:
    code = (
        "import sys, tianzhou.client, tianzhou.client.sync;"
        "tianzhou.client.Producer, tianzhou.client.Message, tianzhou.client.sync.Producer;"
        "print([m for m in sys.modules if m.startswith('tianzhou.')"
        " and any(word in m for word in ('consumer', 'store', 'broker.', 'nameserver.', 'admin'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_client_warnings_are_printed_without_logging_configuration() -> None:
    code = (
        "import logging, tianzhou.client\n"
        "log = logging.getLogger('tianzhou.client')\n"
        "log.info('details')\n"
        "log.warning('this matters')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("", "this matters\n")
