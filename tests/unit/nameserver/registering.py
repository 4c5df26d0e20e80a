"""Registrations for tests of the name server."""

from dataclasses import dataclass, field

from tianzhou.base.kinds import Bytes
from tianzhou.nameserver.brokers import Registration
from tianzhou.net.rpc import OnAnswer
from tianzhou.wire.tables import DataVersion, TopicConfig

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def topic(name: str, *, perm: int = 6, queues: int = 4, flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        perm=perm,
        read_queue_nums=queues,
        write_queue_nums=queues,
        topic_sys_flag=flag,
    )


def broker(
    address: str = A,
    *topics: str | TopicConfig,
    name: str = "broker-a",
    broker_id: int = 0,
    cluster: str = "c",
    counter: int = 1,
    state_version: int = 0,
    timeout_s: float = 120.0,
    acting_master: bool | None = None,
    zone: str | None = None,
    by_dial: bool = False,
    ha_address: str = "",
) -> Registration:
    """A registration of T and U unless topics are given."""
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=ha_address,
        by_dial=by_dial,
        timeout_s=timeout_s,
        acting_master=acting_master,
        zone=zone,
        data_version=DataVersion(counter=counter, state_version=state_version),
        topics=tuple(topic(t) if isinstance(t, str) else t for t in topics or ("T", "U")),
    )


@dataclass(eq=False)
class FakePeer:
    """The other end of a connection, as far as handlers look at it."""

    identity: str = ""
    remote: str = "10.0.0.9:5000"
    local: str = "10.0.0.5:9876"
    remote_host: bytes = bytes(8)
    is_open: bool = True
    sent: list[Bytes] = field(default_factory=list[Bytes])

    def send(self, data: Bytes) -> None:
        self.sent.append(data)

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        raise NotImplementedError

    def ask(
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, *, timeout_s: float
    ) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.is_open = False
