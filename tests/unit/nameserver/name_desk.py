"""A name server without sockets."""

import json
from typing import Any

import pytest
from registering import FakePeer, topic

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.handlers import handlers_of
from tianzhou.nameserver.state import State
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire import registration
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header
from tianzhou.wire.tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable


class Desk:
    """A name server without sockets."""

    def __init__(self, config: NameServerConfig | None = None) -> None:
        self.clock = ManualClock()
        self.events: list[str] = []
        self.state = State(
            clock=self.clock,
            config=config or NameServerConfig(),
            note=lambda event, _: self.events.append(event),
        )
        self.handlers = handlers_of(self.state)
        self.peer = FakePeer()

    def ask(
        self,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        peer: FakePeer | None = None,
    ) -> Reply:
        header = Header(code=code, opaque=1, ext=ext or {}, version=version)
        reply = self.handlers[code](Request(header, body, peer or self.peer))
        assert isinstance(reply, Reply), "a NameServer responds in one step"
        assert reply.code == 0
        return reply

    def refusal(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> int:
        with pytest.raises(RequestRejected) as caught:
            self.ask(code, ext, body)
        return caught.value.code

    def register(
        self,
        *topics: TopicConfig,
        body: bytes | None = None,
        peer: FakePeer | None = None,
        also: dict[str, str] | None = None,
        **ext: str,
    ) -> Reply:
        sent = body_of(*(topics or (topic("T"), topic("U")))) if body is None else body
        named = identity() | {"haServerAddr": "10.0.0.1:10912"} | ext | (also or {})
        return self.ask(RequestCode.REGISTER_BROKER, named, sent, peer=peer)

    def route(self, name: str = "T") -> Any:
        return json.loads(self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}).body)


def identity(**ext: str) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "brokerId": "0",
    } | ext


def body_of(*topics: TopicConfig, counter: int = 1) -> bytes:
    return registration.encode_registration(
        RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigTable(
                data_version=DataVersion(counter=counter),
                topic_config_table={config.topic_name: config for config in topics},
            )
        )
    )
