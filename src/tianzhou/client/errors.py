"""Errors of clients, and whether a retry makes sense.

    TianzhouError                    .retry
    ├── UsageError                   the caller broke the contract (never)
    │   └── BrokerNotFound           no name server knows the broker that was named
    └── ClientError
        ├── ClientClosed             used after it was closed (never)
        ├── ClientBroken             a background task failed unexpectedly (never)
        ├── Unreachable              nothing was delivered (other broker)
        ├── ConnectionLost           no response: the request may or may not have been executed
        ├── CallTimeout              the same, after a timeout (other broker)
        ├── NoNameServer             none of them responded (same broker)
        ├── TopicNotFound            no name server knows the topic (after a route refresh)
        ├── NoRoute                  the topic has no broker for this (after a route refresh)
        ├── SendFailed               a message could not be sent: `tries` says where and why
        │   └── SendTimeout          the deadline passed before the last attempt
        ├── NotStoreOk               stored with a weaker guarantee than requested (other broker)
        ├── BadAnswer                a response without a required field (never)
        ├── BadPullAnswer            the response to a pull cannot be decoded (never)
        ├── TooManyInFlight          too many sends wait for responses (same broker)
        ├── RequestTimeout           no consumer replied to a request in time (same broker)
        ├── TransactionUndecided     the broker did not confirm the outcome of a transaction
        ├── RemoteError              a broker or name server rejected it: `code` and `remark`
        │   └── SystemBusy, NoPermission, ... one class for each code that callers distinguish
        └── others, defined in the modules that raise them

Loops read `retry`; they never list classes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from tianzhou.base.errors import Retry, TianzhouError, UsageError
from tianzhou.record.errors import RecordDamaged
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.queues import MessageQueue

__all__ = [
    "BadAnswer",
    "BadPullAnswer",
    "BrokerNotFound",
    "BrokerSystemError",
    "CallTimeout",
    "ClientBroken",
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "ConsumerNotOnline",
    "FlowControl",
    "GoAway",
    "GroupNotExist",
    "InvalidParameter",
    "MessageIllegal",
    "NoNameServer",
    "NoPermission",
    "NoRoute",
    "NotStoreOk",
    "QueryNotFound",
    "RemoteError",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "Retry",
    "RouteStale",
    "SendFailed",
    "SendTimeout",
    "ServiceNotAvailable",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TianzhouError",
    "TooManyInFlight",
    "TopicNotExist",
    "TopicNotFound",
    "TransactionUndecided",
    "Try",
    "Unreachable",
    "UsageError",
    "may_be_stored",
    "remote_error",
]


class ClientError(TianzhouError):
    """Base class of errors of a running client."""

    may_be_stored: bool = False
    """Whether the request may have been executed although it failed: a message that is sent again
    after such an error may be stored twice. If False, it was certainly not executed."""


class ClientClosed(ClientError):
    """The client was closed, or never started."""


class ClientBroken(ClientError):
    """A background task failed unexpectedly; `__cause__` is the error."""


class Unreachable(ClientError):
    """An address cannot be connected to, so nothing was sent."""

    retry = Retry.OTHER_BROKER

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} can't be reached: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection was lost before the response: the request may have been executed."""

    retry = Retry.OTHER_BROKER
    may_be_stored = True

    def __init__(self, address: str, code: int) -> None:
        super().__init__(f"{address} closed the connection before it responded to request {code}")
        self.address = address
        self.code = code


class CallTimeout(ClientError):
    """No response in time: the request may have been executed, or still be."""

    retry = Retry.OTHER_BROKER
    may_be_stored = True

    def __init__(self, address: str, code: int, timeout_s: float) -> None:
        super().__init__(f"{address} did not respond to request {code} within {timeout_s:.3g} s")
        self.address = address
        self.code = code
        self.timeout_s = timeout_s


class NoNameServer(ClientError):
    """None of the name servers responded."""

    retry = Retry.SAME_BROKER

    def __init__(self, failures: dict[str, str]) -> None:
        reasons = "; ".join(f"{address}: {reason}" for address, reason in failures.items())
        super().__init__(f"no name server responded: {reasons}")
        self.failures = failures


class BrokerNotFound(UsageError):
    """No name server knows the named broker."""

    def __init__(self, names: Iterable[str], known: Iterable[str]) -> None:
        super().__init__(
            f"no broker {', '.join(names)} is known to the name server; it knows: "
            f"{', '.join(known) or 'none'}"
        )


class TopicNotFound(ClientError):
    """No name server knows the topic."""

    retry = Retry.AFTER_ROUTE_REFRESH

    def __init__(self, topic: str, hint: str = "create it, or check its name") -> None:
        super().__init__(f"topic {topic!r} is not known to the name server: {hint}")
        self.topic = topic


class NoRoute(ClientError):
    """The topic exists, but no broker can serve the request."""

    retry = Retry.AFTER_ROUTE_REFRESH


class Try(NamedTuple):
    """One attempt of a send, listed in `SendFailed.tries`.

    `address` is empty if no broker was found.

        except SendFailed as failed:
            print([f"{tried.broker_name}: {tried.error}" for tried in failed.tries])
    """

    broker_name: str
    address: str
    error: TianzhouError


class SendFailed(ClientError):
    """A message could not be sent. If `may_be_stored` is true, one of the attempts may have stored
    it anyway: its response was lost, or the broker did not know the outcome. If you send it again,
    consumers may get two messages, which they can only recognize by their keys."""

    retry = Retry.OTHER_BROKER
    _why = "was not sent"

    def __init__(self, topic: str, tries: Sequence[Try], spent_s: float) -> None:
        super().__init__(
            f"a message to topic {topic!r} {self._why} in {len(tries)}"
            f" {'try' if len(tries) == 1 else 'tries'} and {spent_s:.3g} s:"
            f" {_describe_tries(tries)}"
        )
        self.topic = topic
        self.tries = tuple(tries)
        self.spent_s = spent_s
        self.may_be_stored = any(may_be_stored(tried.error) for tried in tries)


class SendTimeout(SendFailed):
    """The total deadline of a send has passed."""

    _why = "timed out"


class NotStoreOk(ClientError):
    """A message is stored with a weaker guarantee, and `retry_not_store_ok` requests a retry."""

    retry = Retry.OTHER_BROKER
    may_be_stored = True

    def __init__(self, address: str, status: str) -> None:
        super().__init__(f"{address} stored the message with status {status}")
        self.address = address
        self.status = status


class BadAnswer(ClientError):
    """A response lacks a required field. The request may have been executed."""

    may_be_stored = True

    def __init__(self, address: str, code: int, missing: str) -> None:
        super().__init__(f"{address} sent an invalid response to request {code}: {missing}")
        self.address = address
        self.code = code


class BadPullAnswer(ClientError, RecordDamaged):
    """The response to a pull has a header or records that cannot be decoded."""

    def __init__(self, queue: MessageQueue, offset: int, reason: str) -> None:
        super().__init__(
            f"broker {queue.broker_name!r} sent an invalid response to a pull from offset {offset} "
            f"of queue {queue.queue_id} of topic {queue.topic!r}: {reason}; check "
            "the broker's store, or continue at a later offset"
        )
        self.queue = queue
        self.offset = offset


class TooManyInFlight(ClientError):
    """Too many sends are in flight; await some of them first."""

    retry = Retry.SAME_BROKER


class RequestTimeout(ClientError):
    """The request was stored, but no consumer replied in time."""

    retry = Retry.SAME_BROKER


class TransactionUndecided(ClientError):
    """The broker did not confirm the outcome of a transaction, and there is no check callback."""

    retry = Retry.SAME_BROKER


class RemoteError(ClientError):
    """The broker or name server responded with an error."""

    by_code: ClassVar[dict[int, "type[RemoteError]"]] = {}

    def __init_subclass__(cls, *, codes: tuple[int, ...]) -> None:
        RemoteError.by_code |= dict.fromkeys(codes, cls)

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        super().__init__(f"{address} returned {_name_of(code)}: {remark or 'without a reason'}")
        self.address = address
        self.code = code
        self.remark = remark or ""


class BrokerSystemError(RemoteError, codes=(ResponseCode.SYSTEM_ERROR,)):
    """The broker failed, or lost its role or its majority before the request was confirmed."""

    retry = Retry.OTHER_BROKER
    may_be_stored = True


class SystemBusy(RemoteError, codes=(ResponseCode.SYSTEM_BUSY,)):
    """The broker rejects requests because of its load."""

    retry = Retry.OTHER_BROKER


class RequestCodeNotSupported(RemoteError, codes=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)):
    """The server does not support the request."""


class MessageIllegal(RemoteError, codes=(ResponseCode.MESSAGE_ILLEGAL,)):
    """The body or the properties are larger than the broker accepts."""


class ServiceNotAvailable(RemoteError, codes=(ResponseCode.SERVICE_NOT_AVAILABLE,)):
    """The broker is not the master, or its store accepts no messages: nothing was stored."""

    retry = Retry.OTHER_BROKER


class NoPermission(RemoteError, codes=(ResponseCode.NO_PERMISSION,)):
    """The broker or topic does not allow the operation; the route may name another broker."""

    retry = Retry.AFTER_ROUTE_REFRESH


class TopicNotExist(RemoteError, codes=(ResponseCode.TOPIC_NOT_EXIST,)):
    """The broker does not have the topic, although the route names it."""

    retry = Retry.AFTER_ROUTE_REFRESH


class QueryNotFound(RemoteError, codes=(ResponseCode.QUERY_NOT_FOUND,)):
    """The requested offset or message does not exist."""


class SubscriptionParseFailed(RemoteError, codes=(ResponseCode.SUBSCRIPTION_PARSE_FAILED,)):
    """The broker cannot parse a subscription expression."""


class GroupNotExist(RemoteError, codes=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,)):
    """The broker does not have the consumer group."""


class InvalidParameter(RemoteError, codes=(ResponseCode.INVALID_PARAMETER,)):
    """A field of the request is invalid."""


class ConsumerNotOnline(RemoteError, codes=(ResponseCode.CONSUMER_NOT_ONLINE,)):
    """No consumer of the group is connected."""


class FlowControl(RemoteError, codes=(ResponseCode.FLOW_CONTROL,)):
    """The server limits the rate of requests."""

    retry = Retry.SAME_BROKER


class GoAway(RemoteError, codes=(ResponseCode.GO_AWAY,)):
    """The broker is shutting down; the client opens a new connection."""

    retry = Retry.OTHER_BROKER


class RouteStale(
    RemoteError,
    codes=(
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.SLAVE_NOT_AVAILABLE,  # a slave's response to END_TRANSACTION
    ),
):
    """The client's route of the broker is stale."""

    retry = Retry.AFTER_ROUTE_REFRESH


def remote_error(address: str, code: int, remark: str | None) -> RemoteError:
    """Return the exception for a response that is not a success."""
    return RemoteError.by_code.get(code, RemoteError)(address, code, remark)


def may_be_stored(error: BaseException) -> bool:
    """Whether a request that failed with this error may have been executed; true for unknown
    errors."""
    if isinstance(error, ClientError):
        return error.may_be_stored
    return not isinstance(error, UsageError)


def _describe_tries(tries: Sequence[Try]) -> str:
    """Describe each broker once, with its number of attempts and its last error."""
    last = {(tried.broker_name, tried.address): tried.error for tried in tries}
    counts = Counter((tried.broker_name, tried.address) for tried in tries)
    words = {1: "once", 2: "twice"}
    parts = [
        f"{name or 'no broker'}{f' ({address})' if address else ''}"
        f" {words.get(counts[name, address], f'{counts[name, address]} times')}: {error}"
        for (name, address), error in last.items()
    ]
    return "; ".join(parts) or "no broker was tried"


def _name_of(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
