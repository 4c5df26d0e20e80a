"""The test kit: a real NameServer and broker inside your tests.

    def test_an_order_is_stored(mq):                      # the fixture comes with the package
        place_order(nameserver=mq.nameserver)
        assert [m.body for m in mq.stored("orders")] == [b"two apples"]

    with tianzhou.testing.running_broker() as mq: ...     # without pytest
    async with tianzhou.testing.running_broker() as mq: ...

For tests only. The broker is imported when the first one is started.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tianzhou.testing.kit.clock import KitClock
    from tianzhou.testing.kit.running import SMALL_STORE, RunningBroker, running_broker
    from tianzhou.wire._generated_codes import RequestCode, ResponseCode

__all__ = [
    "SMALL_STORE",
    "KitClock",
    "RequestCode",
    "ResponseCode",
    "RunningBroker",
    "running_broker",
]


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name == "KitClock":
            from tianzhou.testing.kit.clock import KitClock

            return KitClock
        if name in ("RequestCode", "ResponseCode"):
            from tianzhou.wire import _generated_codes

            return getattr(_generated_codes, name)
        if name in __all__:
            from tianzhou.testing.kit import running

            return getattr(running, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
