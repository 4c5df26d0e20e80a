"""The route table against a reference model, in any order of operations."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from route_model import RouteModel

from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.routes import RouteTable
from tianzhou.wire.tables import DataVersion, TopicConfig

NAMES = ("a", "b")
CLUSTERS = ("c", "d")
TOPICS = ("T", "U", "V")
ADDRESSES = tuple(f"10.0.0.{number}:10911" for number in range(3))

names = st.sampled_from(NAMES)
topics = st.sampled_from(TOPICS)
addresses = st.sampled_from(ADDRESSES)
links = st.integers(0, 2)
configs = st.builds(
    TopicConfig,
    topic_name=topics,
    perm=st.sampled_from((2, 4, 6, 7)),
    read_queue_nums=st.integers(1, 2),
)
registrations = st.builds(
    Registration,
    cluster=st.sampled_from(CLUSTERS),
    broker_name=names,
    broker_id=st.integers(0, 2),
    address=addresses,
    timeout_s=st.sampled_from((10.0, 120.0)),
    acting_master=st.sampled_from((None, False, True)),
    data_version=st.builds(DataVersion, counter=st.integers(0, 1), state_version=st.integers(0, 2)),
    topics=st.lists(configs, max_size=3, unique_by=lambda config: config.topic_name).map(tuple),
)


class Routes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.model = RouteModel()
        self.now_s = 0.0

    @rule(wanted=registrations, connection=links, drops_omitted=st.booleans())
    def register(self, wanted: Registration, connection: int, drops_omitted: bool) -> None:
        verdict = self.table.register(
            wanted, connection=connection, now_s=self.now_s, drops_omitted=drops_omitted
        )
        assert verdict.name == self.model.register(wanted, connection, self.now_s, drops_omitted)

    @rule(name=names, address=addresses)
    def unregister(self, name: str, address: str) -> None:
        held = self.model.at(name, address)
        assert self.table.unregister(name, address) is (held is not None)
        if held is not None:
            self.model.remove(held)

    @rule(name=names, address=addresses)
    def heartbeat(self, name: str, address: str) -> None:
        self.table.heard(name, address, self.now_s)
        held = self.model.at(name, address)
        if held is not None:
            held.heard_s = self.now_s

    @rule(seconds=st.sampled_from((1, 9, 10, 11, 60, 121)))
    def scan(self, seconds: int) -> None:
        self.now_s += seconds
        late = [held for held in self.model.held if self.now_s > held.heard_s + held.timeout_s]
        gone = {(lost.name, lost.member.address) for lost in self.table.evict(self.now_s)}
        assert gone == {(held.name, held.address) for held in late}
        self.model.remove(*late)

    @rule(connection=links)
    def close(self, connection: int) -> None:
        lost = [held for held in self.model.held if held.connection == connection]
        gone = {(lost.name, lost.member.address) for lost in self.table.closed(connection)}
        assert gone == {(held.name, held.address) for held in lost}
        self.model.remove(*lost)

    @rule(name=names, wipes=st.booleans())
    def change_permission(self, name: str, wipes: bool) -> None:
        rows = [row for row in self.model.rows if row.name == name]
        for row in rows:
            row.perm = row.perm & ~2 if wipes else 6
        change = self.table.topics.wipe_write if wipes else self.table.topics.add_write
        assert change(name) == len(rows)

    @rule(topic=topics, cluster=st.sampled_from((None, *CLUSTERS)))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        if cluster is None:
            self.table.topics.drop_topic(topic)
        else:
            for name in self.table.names_in(cluster):
                self.table.topics.drop(topic, name)
        self.model.rows = [
            row
            for row in self.model.rows
            if row.topic != topic or (cluster and self.model.cluster[row.name] != cluster)
        ]

    @invariant()
    def routes_agree(self) -> None:
        for topic in TOPICS:
            route = self.table.route_of(topic)
            rows = [row for row in self.model.rows if row.topic == topic]
            assert (route is None) is (not rows)
            if route is None:
                continue
            assert {(q.broker_name, q.perm, q.read_queue_nums) for q in route.queue_datas} == {
                (row.name, row.perm, row.queues) for row in rows
            }
            assert {data.broker_name for data in route.broker_datas} == {row.name for row in rows}

    @invariant()
    def brokers_agree(self) -> None:
        table = self.table.cluster_table()
        found = {
            (data.broker_name, broker_id, address)
            for data in table.broker_addr_table.values()
            for broker_id, address in data.broker_addrs.items()
        }
        held = self.model.held
        assert found == {(one.name, one.broker_id, one.address) for one in held}
        alive = {one.name for one in held}
        assert {(c, name) for c, found in table.cluster_addr_table.items() for name in found} == {
            (self.model.cluster[name], name) for name in alive
        }
        for connection in range(3):
            assert self.table.has_link(connection) is any(
                one.connection == connection for one in held
            )

    @invariant()
    def both_views_of_topics_agree(self) -> None:
        found = self.table.topics
        assert set(found.names()) == {row.topic for row in self.model.rows}
        for name in NAMES:
            expected = {row.topic for row in self.model.rows if row.name == name}
            assert set(found.names_of([name])) == expected


TestRoutes = Routes.TestCase
