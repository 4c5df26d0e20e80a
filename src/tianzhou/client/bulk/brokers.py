"""Routes and offsets over blocking connections.

For short-lived programs, such as the tasks of a Spark job: nothing here keeps a thread, a heartbeat
or a registration, and a broker sees nothing but requests.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from tianzhou.base.nameserver_addresses import is_host_name
from tianzhou.client.core.routing import (
    DEFAULT_TOPIC_QUEUES,
    MASTER,
    TopicRoute,
    borrowed_route,
    light_route,
    route_of,
)
from tianzhou.client.errors import (
    ClientError,
    NoNameServer,
    NoRoute,
    Retry,
    TopicNotFound,
    remote_error,
)
from tianzhou.client.options import ClientOptions, parse_nameservers
from tianzhou.client.transport.blocking import BlockingConnection, Request
from tianzhou.record.light_queues import is_light
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import decode_cluster_table, decode_route
from tianzhou.wire.signing import Credentials
from tianzhou.wire.tables import decode_topic_list

__all__ = ["Brokers", "Credentials"]

T = TypeVar("T")

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0

RETRY_S: Final = 30.0
"""How long a broker may be unreachable. A restart with recovery takes seconds."""
RESOLVE_AGAIN_S: Final = 30.0
"""How long a connection to the host name of a name server is used: the name may lead to another
one by then, to which alone the brokers register."""


class Brokers:
    """One connection to each address, opened when it is first needed.

    Owner: one thread.
    """

    def __init__(
        self,
        nameserver: str | None,
        options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._nameservers = list(parse_nameservers(nameserver))
        random.shuffle(self._nameservers)
        self._options = options or ClientOptions()
        self._credentials = credentials
        self._retry_s = retry_s
        self._connections: dict[str, BlockingConnection] = {}
        self._renew_s = dict.fromkeys(filter(is_host_name, self._nameservers), 0.0)
        """When to open the connection to a host name again, which resolves it again."""
        self._routes: dict[str, TopicRoute] = {}

    # Connections

    def connection(self, address: str) -> BlockingConnection:
        if address not in self._connections:
            self._connections[address] = BlockingConnection(
                address, self._options, self._credentials
            )
        return self._connections[address]

    def drop(self, address: str) -> None:
        """Close a connection that failed; the next request opens a new one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def persist(self, attempt: Callable[[], T], *, on_failure: Callable[[], None]) -> T:
        """Retry `attempt` until it succeeds, fails for good, or `retry_s` has passed."""
        deadline = time.monotonic() + self._retry_s
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return attempt()
            except ClientError as error:
                on_failure()
                if error.retry is Retry.NEVER or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    # Name servers

    def _ask_nameserver(self, request: Request) -> tuple[int, str | None, bytes]:
        """Return the response of the first name server that gives one."""
        failures: dict[str, str] = {}
        for address in list(self._nameservers):
            try:
                header, body = self._nameserver(address).call(request)
            except ClientError as error:
                self.drop(address)
                failures[address] = str(error)
                self._nameservers.append(self._nameservers.pop(0))
            else:
                return header.code, header.remark, bytes(body)
        raise NoNameServer(failures)

    def _nameserver(self, address: str) -> BlockingConnection:
        renew_s = self._renew_s.get(address)
        if renew_s is not None and time.monotonic() >= renew_s:
            self.drop(address)
            self._renew_s[address] = time.monotonic() + RESOLVE_AGAIN_S
        return self.connection(address)

    def topics(self) -> list[str]:
        """Return all topics that the NameServer knows, including system topics.

        Entries that brokers register under their own names and cluster names are left out.
        """
        topics = decode_topic_list(self._told(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        table = decode_cluster_table(self._told(RequestCode.GET_BROKER_CLUSTER_INFO))
        of_servers = table.broker_addr_table.keys() | table.cluster_addr_table.keys()
        return sorted(set(topics.topic_list) - of_servers)

    def _told(self, request_code: int) -> bytes:
        code, remark, body = self._ask_nameserver(Request(request_code, {}))
        if code != ResponseCode.SUCCESS:
            raise remote_error("the name server", code, remark)
        return body

    def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic, from the NameServer at first use. Raises TopicNotFound."""
        if is_light(topic) and (refresh or topic not in self._routes):
            table = decode_cluster_table(self._told(RequestCode.GET_BROKER_CLUSTER_INFO))
            self._routes[topic] = light_route(topic, table)
        elif refresh or topic not in self._routes:
            ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
            request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            code, remark, body = self._ask_nameserver(request)
            if code == ResponseCode.TOPIC_NOT_EXIST:
                self._routes.pop(topic, None)
                raise TopicNotFound(topic)
            if code != ResponseCode.SUCCESS:
                raise remote_error("the name server", code, remark)
            self._routes[topic] = route_of(topic, decode_route(body))
        return self._routes[topic]

    def publish_route(self, topic: str) -> TopicRoute:
        """Return a route for writing. A topic that does not exist yet has the route of the brokers
        that create topics automatically. Raises TopicNotFound."""
        try:
            return self.route(topic)
        except TopicNotFound:
            ext = {"topic": DEFAULT_TOPIC, "acceptStandardJsonOnly": "true"}
            request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            code, _, body = self._ask_nameserver(request)
            if code != ResponseCode.SUCCESS:
                raise
            return borrowed_route(topic, decode_route(body), DEFAULT_TOPIC_QUEUES)

    def forget(self, topic: str | None = None) -> None:
        """Drop the route of a topic, or all routes; the next use requests them again."""
        if topic is None:
            self._routes.clear()
        else:
            self._routes.pop(topic, None)

    def address_of(self, queue: MessageQueue) -> str:
        """Return the address of the master of a queue, or else of a slave. Raises NoRoute while
        its broker is not registered."""
        return self.replica_of(queue, MASTER)[1]

    def replica_of(self, queue: MessageQueue, broker_id: int) -> tuple[int, str]:
        """Return the replica with this id, or else another one, preferably the master: its id and
        address. Raises NoRoute while the broker of the queue is not registered."""
        replica = self.route(queue.topic).any_replica(queue.broker_name, broker_id)
        if replica is None:
            raise NoRoute(
                f"broker {queue.broker_name} of topic {queue.topic} is not registered; "
                "is it running?"
            )
        return replica

    def replica_ids(self, queue: MessageQueue) -> Collection[int]:
        """Return the ids of the replicas of a queue, if its route is known."""
        route = self._routes.get(queue.topic)
        return () if route is None else route.brokers.get(queue.broker_name, {}).keys()

    # Queues

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return self._offsets(
            queues,
            RequestCode.GET_MIN_OFFSET,
            lambda queue: QueueRequest(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        )

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        return self._offsets(
            queues,
            RequestCode.GET_MAX_OFFSET,
            lambda queue: GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id).to_ext(),
        )

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at this time or later.

        If there is none, it is the end of the queue.
        """
        return self._offsets(
            queues,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda queue: SearchOffsetRequest(
                topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=time_ms
            ).to_ext(),
        )

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the committed offsets of a group; queues without one are left out."""
        answers = self._ask_all(
            queues,
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda queue: QueryConsumerOffsetRequest(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False,
            ).to_ext(),
            passed_over=ResponseCode.QUERY_NOT_FOUND,
        )
        return {queue: int(ext["offset"]) for queue, ext in answers.items()}

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets of a group, and wait until the brokers have stored them."""
        self._ask_all(
            offsets,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            lambda queue: UpdateConsumerOffsetRequest(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offsets[queue],
            ).to_ext(),
        )

    def _offsets(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        ext_of: Callable[[MessageQueue], dict[str, str]],
    ) -> dict[MessageQueue, int]:
        answers = self._ask_all(queues, code, ext_of)
        return {queue: int(ext["offset"]) for queue, ext in answers.items()}

    def _ask_all(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        ext_of: Callable[[MessageQueue], dict[str, str]],
        *,
        passed_over: int = 0,
    ) -> dict[MessageQueue, dict[str, str]]:
        """Send one request for each queue, pipelined per broker, and return the header fields of
        the responses. Queues whose response has the code `passed_over` are left out. Raises
        ClientError for the first broker that is unreachable or rejects a request."""
        by_address: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_address.setdefault(self.address_of(queue), []).append(queue)
        found: dict[MessageQueue, dict[str, str]] = {}
        for address, here in by_address.items():
            try:
                answers = self.connection(address).call_all(
                    [Request(code, ext_of(queue)) for queue in here]
                )
            except ClientError:
                self.drop(address)
                raise
            for queue, (header, _) in zip(here, answers, strict=True):
                if header.code == ResponseCode.SUCCESS:
                    found[queue] = header.ext
                elif header.code != passed_over:
                    raise remote_error(address, header.code, header.remark)
        return found
