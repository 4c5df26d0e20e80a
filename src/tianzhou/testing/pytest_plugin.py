"""The fixtures `mq` and `mq_factory`. pytest discovers them once the package is installed.

Importing this module is cheap: the broker is imported when a test first uses a fixture.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tianzhou.testing.kit.running import RunningBroker


@pytest.fixture
def mq_settings() -> dict[str, Any]:
    """Return arguments of `running_broker` for `mq`. Override it in a module or a conftest."""
    return {}


@pytest.fixture
def mq(mq_settings: dict[str, Any]) -> "Iterator[RunningBroker]":
    """Start a NameServer and a broker for one test."""
    from tianzhou.testing.kit.running import running_broker

    with running_broker(**mq_settings) as running:
        yield running


@pytest.fixture
def mq_factory() -> "Iterator[Callable[..., RunningBroker]]":
    """Return a function that starts brokers with the arguments of `running_broker`. All of them
    stop when the test ends."""
    from contextlib import ExitStack

    from tianzhou.testing.kit.running import RunningBroker, running_broker

    with ExitStack() as stack:

        def start(**settings: Any) -> RunningBroker:
            return stack.enter_context(running_broker(**settings))

        yield start
