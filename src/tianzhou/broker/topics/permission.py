"""Read and write permission of the whole broker; removed to drain it for maintenance."""

from collections.abc import Callable

from tianzhou.broker.role import RoleState
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import PERM_READ, PERM_WRITE


class Permission:
    """Owner: the broker loop."""

    def __init__(self, name: str, bits: int, role_state: RoleState) -> None:
        self._name = name
        self._role_state = role_state
        self.bits = bits
        self.changed: list[Callable[[], None]] = []

    def set(self, bits: int) -> None:
        self.bits = bits
        for notify in self.changed:
            notify()

    def check_write(self) -> None:
        self._role_state.check_write()
        if not self.bits & PERM_WRITE:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {self._name} accepts no messages now: it is being drained; "
                "send to another broker",
            )

    def check_read(self) -> None:
        self._role_state.check_read()
        if not self.bits & PERM_READ:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"broker {self._name} currently delivers no messages",
                {"forbiddenType": "1"},
            )
