"""The plugin is discovered by pytest, imports nothing until it is used, and can be configured."""

import subprocess
import sys
from pathlib import Path

from tianzhou.testing import RunningBroker

HEAVY = ("numpy", "msgspec", "asyncio", "tianzhou.broker", "tianzhou.store", "tianzhou.wire")


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_pytest_plugin_import_does_not_import_the_broker(tmp_path: Path) -> None:
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import tianzhou.testing.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tianzhou.testing.pytest_plugin" in done.stdout
    assert not [name for name in HEAVY if f"'{name}" in done.stdout]


def test_pytest_plugin_fixtures_are_available_where_it_is_installed(tmp_path: Path) -> None:
    """In an empty directory, without a conftest."""
    (tmp_path / "test_theirs.py").write_text(
        "import pytest\n"
        "from tianzhou.broker.config import BrokerConfig\n"
        "@pytest.fixture\n"
        "def mq_settings():\n"
        "    return {'config': BrokerConfig(name='broker-x')}\n"
        "def test_one(mq):\n"
        "    mq.create_topic('orders')\n"
        "    assert mq.stored('orders') == []\n"
        "    assert mq.name == 'broker-x'\n"
        "def test_two(mq_factory):\n"
        "    one = mq_factory()\n"
        "    other = mq_factory(nameserver=one, config=BrokerConfig(name='broker-b'))\n"
        "    assert one.broker != other.broker\n"
    )
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_pytest_plugin_fixtures_are_available_in_this_project(mq: RunningBroker) -> None:
    assert mq.nameserver.startswith("127.0.0.1:")
    assert mq.broker != mq.nameserver
    assert mq.directory.exists()
