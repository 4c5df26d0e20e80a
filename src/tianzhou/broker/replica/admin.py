"""Looking at master and slaves, and changing by hand who is the master."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tianzhou.broker import runtime_config
from tianzhou.broker.role import RoleState
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.replication.durability import Durability
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import PromoteBrokerRequest, StepDownBrokerRequest
from tianzhou.wire.admin_bodies import HaConnection, HaStatus
from tianzhou.wire.replication_bodies import ReplicationView, SlaveView


class Group(runtime_config.Group, Protocol):
    """Who manages master and slaves."""

    def look(self, alone: ReplicationView) -> ReplicationView:
        """What a broker by itself would say, and what is known of the others."""
        ...

    def when_told(self, then: Callable[[], None]) -> None:
        """Call it when this slave knows all that its master, if it is there, can tell."""
        ...

    @property
    def hear_nameservers(self) -> Callable[[Callable[[], None]], None]:
        """Register, and call the callback when all NameServers have responded or timed out."""
        ...

    def claim(self, *, above: int = 0) -> None: ...
    def promote(self) -> int: ...
    def step_down(self, broker_id: int, *, reason: str) -> int: ...


@dataclass(slots=True)
class AdminReplication:
    """Owner: the broker loop."""

    name: str
    store: MessageStore
    role_state: RoleState
    durability: Durability
    group: Group | None = None
    """Set by whoever makes this broker a master or slave of one."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.VIEW_REPLICATION: lambda _: Reply(body=fastjson.encode(self.look())),
            RequestCode.PROMOTE_BROKER: self.promote,
            RequestCode.STEP_DOWN_BROKER: self.step_down,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def look(self) -> ReplicationView:
        marks, role_state = self.store.watermarks, self.role_state
        confirmed = self.durability.confirmed() if self.durability.waits else marks.appended
        alone = ReplicationView(
            broker_id=role_state.broker_id, broker_name=self.name, confirmed=confirmed,
            end=marks.appended, epoch=role_state.epoch, flushed=marks.flushed,
            master_address=role_state.master_address, min=marks.minimum, role=role_state.role.value,
        )  # fmt: skip
        return alone if self.group is None else self.group.look(alone)

    def promote(self, request: Request) -> None:
        asked, group = PromoteBrokerRequest.from_ext(request.header.ext), self._group()

        def respond(reply: Reply) -> None:
            request.peer.send(encode_reply(request.header, reply))

        def begin() -> None:
            try:
                group.claim(above=asked.above_epoch)
            except RequestRejected as refused:
                respond(Reply(refused.code, remark=refused.remark))
            else:
                # Before it takes messages: no other slave may get the same epoch. And if this
                # master dies at once, the old one must learn from a NameServer that it was
                # replaced.
                group.hear_nameservers(end)

        def end() -> None:
            try:
                respond(Reply(ext={"epoch": str(group.promote())}))
            except RequestRejected as refused:
                respond(Reply(refused.code, remark=refused.remark))

        group.when_told(begin)

    def step_down(self, request: Request) -> Reply:
        asked = StepDownBrokerRequest.from_ext(request.header.ext)
        if asked.broker_id <= 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, f"a slave can't have the id {asked.broker_id}"
            )
        end = self._group().step_down(asked.broker_id, reason="an operator wants it")
        return Reply(ext={"end": str(end)})

    def _group(self) -> Group:
        if self.group is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, "this broker is not in a group of master and slaves"
            )
        return self.group

    def ha_status(self, _request: Request) -> Reply:
        """As RocketMQ's tools know it."""
        look = self.look()
        status = HaStatus(
            master=self.role_state.is_master,
            master_commit_log_max_offset=look.end,
            in_sync_slave_nums=sum(slave.is_in_sync for slave in look.slaves),
            ha_connection_info=tuple(map(_connection, look.slaves)),
        )
        return Reply(body=fastjson.encode(status))


def _connection(slave: SlaveView) -> HaConnection:
    return HaConnection(
        addr=slave.address, diff=slave.lag_bytes, in_sync=slave.is_in_sync,
        slave_ack_offset=slave.acked,
    )  # fmt: skip
