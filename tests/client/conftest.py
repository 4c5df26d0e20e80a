"""Each asynchronous test runs on plain asyncio and on uvloop."""

import asyncio

import pytest
import uvloop
from loops import Body, Run


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs the body of a test in a new event loop of either kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_body(body: Body) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body())

    return run_body
