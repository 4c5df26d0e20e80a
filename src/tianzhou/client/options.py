"""Options of clients and producers, and the parsing of name server lists."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.base.nameserver_addresses import NAMESERVER_VARIABLES, nameserver_from, split_list
from tianzhou.client.core.namespace import checked_namespace
from tianzhou.client.core.routing import FaultAvoidance, QueueChoice
from tianzhou.client.core.send_request import Compression
from tianzhou.wire.names import TRACE_TOPIC
from tianzhou.wire.signing import Credentials

if TYPE_CHECKING:
    from tianzhou.client.hooks import SendHook

_PORT_MAX: Final = 65_535
GROUP_CHARS_MAX: Final = 120
_GROUP: Final = re.compile(r"[%|A-Za-z0-9_-]+")
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def check_types(options: _Dataclass, *, besides: Collection[str] = ()) -> None:
    """Raise UsageError if the type of an option's value differs from that of its default. Options
    in `besides`, and those whose default is None or a function, are not checked."""
    for option in fields(options):
        value: object = getattr(options, option.name)
        default: object = option.default
        # An option that is a float may have a default such as 900.
        wanted = float if option.type is float else type(default)
        if default is None or callable(default) or option.name in besides:
            continue
        if isinstance(value, wanted) or (wanted is float and isinstance(value, int)):
            continue
        raise UsageError(
            f"{option.name} {repr(value)[:42]} is of type {type(value).__name__}; it must be of "
            f"type {wanted.__name__}, such as {default!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options that every client accepts: identity, credentials and timeouts.

    Clients of one event loop with the same name servers and equal options share their connections;
    brokers see them as one client. Raises UsageError for values of the wrong type or range.

        client = ClientOptions(instance_name="orders-1", call_timeout_s=5)
        Producer("orders", nameserver="10.0.0.1:9876", client=client)
    """

    instance_name: str = ""
    """Part of the client id. Empty: derived from the process and the time, so that two processes on
    one machine differ; `DEFAULT` for broadcasting consumers, which find their offsets by it. Name
    each of several broadcasting consumers of a group on one machine."""
    client_ip: str = ""
    """Part of the client id. Empty: the address through which this machine reaches others."""
    unit_name: str = ""
    namespace: str = ""
    """Prefix of all topics and groups on the wire: `orders` is `namespace%orders` there, as with
    RocketMQ's Java client. Names of the system have none, and administration ignores it."""
    credentials: Credentials | None = None
    """Access key and secret key that sign every request; None: requests are not signed."""
    call_timeout_s: float = 3.0
    """Timeout of one request to a name server or broker, unless the call has its own."""
    connect_timeout_s: float = 3.0
    silent_s: float = 5.0
    """A connection that received nothing for this long while a request timed out is replaced: the
    peer may have lost power or its network."""
    route_interval_s: float = 30.0
    """How often known routes are refreshed."""
    heartbeat_interval_s: float = 30.0
    """Brokers drop clients that sent no heartbeat for 120 seconds."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "call_timeout_s",
            "connect_timeout_s",
            "silent_s",
            "route_interval_s",
            "heartbeat_interval_s",
        ):
            value: float = getattr(self, name)
            if not value > 0:
                raise UsageError(f"{name} is {value}; it must be above 0")
        for name in ("instance_name", "client_ip", "unit_name"):
            text: str = getattr(self, name)
            if "@" in text:
                raise UsageError(f"{name} {text!r} has an @, which separates parts of client ids")
        checked_namespace(self.namespace)


def parse_nameservers(text: str | None) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`; an address without a port has 9876.

    None uses the environment: `TIANZHOU_NAMESERVER`, or else RocketMQ's `NAMESRV_ADDR`. Raises
    UsageError.
    """
    if text is None:
        text = nameserver_from(os.environ)
    if text is None:
        raise UsageError(
            "no NameServer is given; pass nameserver='host:port', or set "
            f"{' or '.join(NAMESERVER_VARIABLES)}"
        )
    _check_text("nameserver", text)
    found = split_list(text)
    if not found:
        raise UsageError(
            f"name servers {text!r} name no address; write host:port, several with ; between"
        )
    for address in found:
        split_address(address)
    return tuple(dict.fromkeys(found))


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises UsageError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise UsageError(f"address {address!r} is not host:port, with a port up to {_PORT_MAX}")
    return host, int(port)


def checked_group(name: str) -> str:
    """Return the group name if it is valid. Raises UsageError."""
    _check_text("group", name)
    if not _GROUP.fullmatch(name) or len(name) > GROUP_CHARS_MAX:
        raise UsageError(
            f"invalid group {name!r}; use 1 to {GROUP_CHARS_MAX} letters, digits and % | _ -"
        )
    return name


def checked_timeout(timeout_s: float | None) -> None:
    """Raise UsageError unless the timeout is None or above 0."""
    if timeout_s is None:
        return
    _check_number("timeout_s", timeout_s)
    if not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s}; it must be above 0, or None for the default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How a producer combines single sends into batches.

    A batch is sent when it is full, or when its first message has waited for `linger_s`. Raises
    UsageError for values out of range.

        options = ProducerOptions(batching=Batching(count_max=500))
    """

    linger_s: float = 0.0
    """0: a batch is sent as soon as none of its kind is in flight. So a single message does not
    wait at all, and batches grow with the number of concurrent sends."""
    count_max: int = 1_000
    bytes_max: int = 256 * _KIB
    """Size of all bodies and properties of a batch; a larger message is sent by itself."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.linger_s < 10:
            raise UsageError(f"linger_s is {self.linger_s}; possible are 0 to 10 seconds")
        if not 1 <= self.count_max <= 10_000:
            raise UsageError(f"count_max is {self.count_max}; possible are 1 to 10,000 messages")
        if not _KIB <= self.bytes_max <= BODY_BYTES_MAX // 2:
            raise UsageError(
                f"bytes_max is {self.bytes_max}; possible are {_KIB} to {BODY_BYTES_MAX // 2}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a producer: timeouts, retries, compression, batching and limits.

    Raises UsageError for values of the wrong type or range.

        options = ProducerOptions(send_timeout_s=10, compression=Compression.ZSTD)
        Producer("orders", nameserver="10.0.0.1:9876", options=options)
    """

    send_timeout_s: float = 3.0
    """Timeout of a send with all its attempts."""
    try_timeout_s: float = 1.5
    """Timeout of one attempt; the last attempt has all the remaining time."""
    tries_max: int = 3
    retry_not_store_ok: bool = False
    """Whether a message stored with a status other than SEND_OK is also sent to another broker. It
    is then stored twice."""
    compression: Compression = Compression.ZLIB
    compress_over_bytes: int = 4096
    queue_choice: QueueChoice = QueueChoice.ROUND_ROBIN
    fault_avoidance: FaultAvoidance | None = FaultAvoidance()
    """For how long a slow or failed broker is avoided. None: only by the further attempts of a send
    that failed there."""
    batching: Batching | None = None
    """None: each message is sent in its own frame."""
    in_flight_count_max: int = 10_000
    in_flight_bytes_max: int = 100 * _MIB
    trace: bool = False
    """Whether each send is recorded in `trace_topic`."""
    trace_topic: str = TRACE_TOPIC
    spans: bool = False
    """Whether each send is an OpenTelemetry span, whose context travels with the message. Needs the
    extra `tracing`."""
    hooks: "Sequence[SendHook]" = ()
    """Called around each send; the first of them is called first."""

    def __post_init__(self) -> None:
        check_types(self, besides=("fault_avoidance", "hooks"))
        avoidance = cast("object", self.fault_avoidance)
        if avoidance is not None and not isinstance(avoidance, FaultAvoidance):
            raise UsageError(f"fault_avoidance {avoidance!r} is not a FaultAvoidance, or None")
        for name in (
            "send_timeout_s",
            "try_timeout_s",
            "tries_max",
            "in_flight_count_max",
            "in_flight_bytes_max",
        ):
            value: float = getattr(self, name)
            if not value > 0:
                raise UsageError(f"{name} is {value}; it must be above 0")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        kind = type(value).__name__
        raise UsageError(f"{name} {repr(value)[:42]} is of type {kind}; it must be text")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)):
        raise UsageError(f"{name} {repr(value)[:42]} is not a number of seconds")


def client_repr(client: object, state: str, **facts: object) -> str:
    """The repr of a client: its type, its purpose and its state."""
    shown = "".join(f" {name}={value!r}" for name, value in facts.items() if value)
    return f"<{type(client).__name__}{shown} {state}>"
