"""A route table, and a connection and a clock to speak to it through."""

from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.routes import RouteTable, Verdict
from tianzhou.wire.routes import TopicRouteData


class World:
    def __init__(self) -> None:
        self.table = RouteTable()
        self.connection = object()
        self.now_s = 0.0

    def register(self, wanted: Registration, *, drops_omitted: bool = False) -> Verdict:
        return self.table.register(
            wanted, connection=self.connection, now_s=self.now_s, drops_omitted=drops_omitted
        )

    def route(self, name: str = "T") -> TopicRouteData:
        found = self.table.route_of(name)
        assert found is not None
        return found

    def perms(self, name: str = "T") -> list[int]:
        return [row.perm for row in self.route(name).queue_datas]

    def addresses(self, name: str = "broker-a") -> dict[int, str]:
        return self.table.addresses_of(name)
