"""Requests that this broker knows and does not serve, each with the reason in the response."""

from collections.abc import Mapping
from typing import Final

from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.wire._generated_codes import RequestCode as Code
from tianzhou.wire._generated_codes import ResponseCode

_POP: Final = "pop consumption is not served: consumers pull, which every client can do"
_REBALANCE: Final = (
    "queues are not assigned by the broker: one broker knows only its own queues; clients share "
    "the queues of all brokers among themselves when they get this response"
)
_PLAIN_ACL: Final = "access control of RocketMQ 4 is not served; the broker binds to loopback"
_AUTH: Final = "users and access lists are not served; the broker binds to loopback"
_COLD: Final = "there is no control of cold reads: every read is served the same way"
_CONTROLLER: Final = (
    "there is no controller here: slaves are promoted by hand, or groups elect by Raft"
)
_CONTAINER: Final = "one process is one broker; start another process for another broker"
_ROCKSDB: Final = "tables are plain JSON files; there is no RocksDB"
_SLAVE: Final = "slaves do not act as masters: they follow, and are promoted by hand or by Raft"
_TIMER: Final = "timed messages are kept otherwise than in RocketMQ's timer files"

REFUSED: Final[Mapping[Code, str]] = {
    Code.POP_MESSAGE: _POP,
    Code.ACK_MESSAGE: _POP,
    Code.BATCH_ACK_MESSAGE: _POP,
    Code.PEEK_MESSAGE: _POP,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    Code.NOTIFICATION: _POP,
    Code.POLLING_INFO: _POP,
    Code.POP_ROLLBACK: _POP,
    Code.QUERY_ASSIGNMENT: _REBALANCE,
    Code.SET_MESSAGE_REQUEST_MODE: _POP,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _PLAIN_ACL,
    Code.DELETE_ACL_CONFIG: _PLAIN_ACL,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _PLAIN_ACL,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _PLAIN_ACL,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _PLAIN_ACL,
    Code.AUTH_CREATE_USER: _AUTH,
    Code.AUTH_UPDATE_USER: _AUTH,
    Code.AUTH_DELETE_USER: _AUTH,
    Code.AUTH_GET_USER: _AUTH,
    Code.AUTH_LIST_USER: _AUTH,
    Code.AUTH_CREATE_ACL: _AUTH,
    Code.AUTH_UPDATE_ACL: _AUTH,
    Code.AUTH_DELETE_ACL: _AUTH,
    Code.AUTH_GET_ACL: _AUTH,
    Code.AUTH_LIST_ACL: _AUTH,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    Code.SET_COMMITLOG_READ_MODE: _COLD,
    Code.GET_BROKER_EPOCH_CACHE: _CONTROLLER,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLER,
    Code.ADD_BROKER: _CONTAINER,
    Code.REMOVE_BROKER: _CONTAINER,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    Code.EXCHANGE_BROKER_HA_INFO: _SLAVE,
    Code.RESET_MASTER_FLUSH_OFFSET: _SLAVE,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _SLAVE,
    Code.GET_TIMER_CHECK_POINT: _TIMER,
    Code.GET_TIMER_METRICS: _TIMER,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics are not served: queues belong to the broker that has them"
    ),
    Code.REGISTER_FILTER_SERVER: "filter servers were removed in RocketMQ 4.9; use SQL92",
    Code.GET_CLIENT_CONFIG: "no client asks for its settings; RocketMQ does not serve it either",
}


class Refusals:
    def handlers(self) -> dict[int, Handler]:
        return {code: _refuse(code, reason) for code, reason in REFUSED.items()}


def _refuse(code: Code, reason: str) -> Handler:
    def refuse(_request: Request) -> Reply:
        raise RequestRejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{code.name}: {reason}")

    return refuse
