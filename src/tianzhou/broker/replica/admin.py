"""Requests that inspect master and slaves, and change which broker is the master."""

import logging
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.broker.replica.mode import Mode
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import PromoteBrokerRequest, StepDownBrokerRequest
from tianzhou.wire.admin_bodies import HaConnection, HaStatus
from tianzhou.wire.replication_bodies import ReplicationView, SlaveView

log: Final = logging.getLogger("tianzhou.replication")


class AdminReplication:
    """Requests of operators about master and slaves. Owner: the broker loop."""

    def __init__(self, name: str, store: MessageStore, mode: Mode) -> None:
        self._name = name
        self._store = store
        self._mode = mode

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.VIEW_REPLICATION: lambda _: Reply(body=fastjson.encode(self.view())),
            RequestCode.PROMOTE_BROKER: self.promote,
            RequestCode.STEP_DOWN_BROKER: self.step_down,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def view(self) -> ReplicationView:
        marks, role_state = self._store.watermarks, self._mode.role_state
        durability = self._mode.durability
        confirmed = durability.confirmed() if durability.waits else marks.appended
        alone = ReplicationView(
            broker_id=role_state.broker_id,
            broker_name=self._name,
            confirmed=confirmed,
            end=marks.appended,
            epoch=role_state.epoch,
            flushed=marks.flushed,
            master_address=role_state.master_address,
            min=marks.minimum,
            role=role_state.role.value,
        )
        return self._mode.view(alone)

    def promote(self, request: Request) -> None:
        asked = PromoteBrokerRequest.from_ext(request.header.ext)
        promotion = self._mode.promotion()

        def respond(reply: Reply) -> None:
            request.peer.send(encode_reply(request.header, reply))

        def begin() -> None:
            try:
                promotion.claim(above=asked.above_epoch)
            except TianzhouError as error:
                respond(_failed(error))
            else:
                # Before this broker accepts messages: no other slave may get the same epoch. And
                # if this master dies at once, the old one must learn from a NameServer that it was
                # replaced.
                promotion.announce_claim(end)

        def end() -> None:
            try:
                respond(Reply(ext={"epoch": str(promotion.promote())}))
            except TianzhouError as error:  # such as a full disk
                respond(_failed(error))

        promotion.after_final_sync(begin)

    def step_down(self, request: Request) -> Reply:
        asked = StepDownBrokerRequest.from_ext(request.header.ext)
        if asked.broker_id <= 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, f"a slave can't have the id {asked.broker_id}"
            )
        end = self._mode.promotion().step_down(asked.broker_id, reason="an operator wants it")
        return Reply(ext={"end": str(end)})

    def ha_status(self, _request: Request) -> Reply:
        """Master and slaves in the form that RocketMQ's tools read."""
        view = self.view()
        status = HaStatus(
            master=self._mode.role_state.is_master,
            master_commit_log_max_offset=view.end,
            in_sync_slave_nums=sum(slave.is_in_sync for slave in view.slaves),
            ha_connection_info=tuple(map(_connection, view.slaves)),
        )
        return Reply(body=fastjson.encode(status))


def _failed(error: TianzhouError) -> Reply:
    """The response to a promotion that failed: no other code catches the errors of a callback."""
    if isinstance(error, RequestRejected):
        return Reply(error.code, remark=error.remark)
    log.error("promotion.failed", extra={"reason": str(error)})
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"this broker is still a slave: {error}")


def _connection(slave: SlaveView) -> HaConnection:
    return HaConnection(
        addr=slave.address,
        diff=slave.lag_bytes,
        in_sync=slave.is_in_sync,
        slave_ack_offset=slave.acked,
    )
