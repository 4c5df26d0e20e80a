"""A slow and simple reference model of the route table: two lists and the rules."""

from dataclasses import dataclass

from tianzhou.nameserver.brokers import Registration
from tianzhou.wire.tables import DataVersion


@dataclass
class Held:
    name: str
    broker_id: int
    address: str
    version: DataVersion
    heard_s: float
    timeout_s: float
    connection: int


@dataclass
class Row:
    topic: str
    name: str
    perm: int
    queues: int


class RouteModel:
    def __init__(self) -> None:
        self.held: list[Held] = []
        self.rows: list[Row] = []
        self.cluster: dict[str, str] = {}
        self.acting: dict[str, bool] = {}

    def register(
        self, wanted: Registration, connection: int, now_s: float, drops_omitted: bool
    ) -> str:
        name, broker_id = wanted.broker_name, wanted.broker_id
        old = self.find(name, broker_id)
        if old is None and len(wanted.topics) == 1:
            return "NOT_ALONE"
        if old is not None and old.address != wanted.address and old.connection != connection:
            epochs = {old.version.state_version, wanted.data_version.state_version}
            if now_s <= old.heard_s + old.timeout_s and (len(epochs) == 1 or 0 in epochs):
                return "TAKEN"
        self.held = [
            held
            for held in self.held
            if (held.name, held.address) != (name, wanted.address) or held.broker_id == broker_id
        ]
        if (
            old is not None
            and old.address != wanted.address
            and old.version.state_version > wanted.data_version.state_version
        ):
            self.settle({name})
            return "OUTDATED"
        self.cluster[name], self.acting[name] = wanted.cluster, bool(wanted.acting_master)
        self.held = [held for held in self.held if held is not old]
        self.held.append(
            Held(
                name,
                broker_id,
                wanted.address,
                wanted.data_version,
                now_s,
                wanted.timeout_s,
                connection,
            )
        )
        if self.speaks(wanted):
            self.take_topics(wanted, old, drops_omitted)
        return "FIRST" if old is None else "AGAIN"

    def speaks(self, wanted: Registration) -> bool:
        lowest = min(held.broker_id for held in self.held if held.name == wanted.broker_name)
        return wanted.broker_id == 0 or (
            wanted.acting_master is not None and wanted.broker_id == lowest
        )

    def take_topics(self, wanted: Registration, old: Held | None, drops_omitted: bool) -> None:
        name = wanted.broker_name
        topics = [config.topic_name for config in wanted.topics]
        if drops_omitted:
            self.rows = [row for row in self.rows if row.name != name or row.topic in topics]
        same = old and old.address == wanted.address and old.version == wanted.data_version
        for config in wanted.topics:
            row = self.row(config.topic_name, name)
            if row and same:
                continue
            wiped = wanted.broker_id != 0 and self.acting[name]
            perm = config.perm & ~2 if wiped else config.perm
            self.rows = [other for other in self.rows if other is not row]
            self.rows.append(Row(config.topic_name, name, perm, config.read_queue_nums))

    def remove(self, *gone: Held) -> None:
        self.held = [held for held in self.held if held not in gone]
        self.settle({held.name for held in gone})

    def settle(self, names: set[str] | None = None) -> None:
        """Remove rows without members; rows without a master may become read-only."""
        alive = {held.name for held in self.held}
        self.rows = [row for row in self.rows if row.name in alive]
        for name in alive if names is None else alive & names:
            if self.acting[name] and self.find(name, 0) is None:
                for row in self.rows:
                    if row.name == name:
                        row.perm &= ~2

    def find(self, name: str, broker_id: int) -> Held | None:
        found = [held for held in self.held if (held.name, held.broker_id) == (name, broker_id)]
        return found[0] if found else None

    def at(self, name: str, address: str) -> Held | None:
        found = [held for held in self.held if (held.name, held.address) == (name, address)]
        return found[0] if found else None

    def row(self, topic: str, name: str) -> Row | None:
        found = [row for row in self.rows if (row.topic, row.name) == (topic, name)]
        return found[0] if found else None
