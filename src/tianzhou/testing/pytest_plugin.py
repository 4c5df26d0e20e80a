"""The fixtures `mq` and `mq_factory`. pytest finds them by itself once the package is installed.

Importing this is cheap: what a broker needs is loaded when a test asks for one.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tianzhou.testing.kit.running import RunningBroker


@pytest.fixture
def mq_settings() -> dict[str, Any]:
    """Arguments of `running_broker` for `mq`. Override it in a module or a conftest."""
    return {}


@pytest.fixture
def mq(mq_settings: dict[str, Any]) -> "Iterator[RunningBroker]":
    """A NameServer and a broker of the test's own."""
    from tianzhou.testing.kit.running import running_broker

    with running_broker(**mq_settings) as running:
        yield running


@pytest.fixture
def mq_factory() -> "Iterator[Callable[..., RunningBroker]]":
    """Starts brokers with the arguments of `running_broker`; all end with the test."""
    from contextlib import ExitStack

    from tianzhou.testing.kit.running import RunningBroker, running_broker

    with ExitStack() as stack:

        def start(**settings: Any) -> RunningBroker:
            return stack.enter_context(running_broker(**settings))

        yield start
