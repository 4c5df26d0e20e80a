"""Settings are shown as a broker reads them, and a few are changed while it runs."""

import pytest

from tianzhou.base.settings import declarations, load
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.runtime_config import RuntimeConfig, parse_properties, table_of
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.wire._generated_codes import ResponseCode


def made() -> tuple[RuntimeConfig, list[BrokerConfig]]:
    runtime_config, taken = (
        RuntimeConfig(BrokerConfig(), StoreConfig(), "data"),
        list[BrokerConfig](),
    )
    runtime_config.adopt.append(taken.append)
    return runtime_config, taken


def refused(text: bytes) -> RequestRejected:
    runtime_config, taken = made()
    with pytest.raises(RequestRejected) as caught:
        runtime_config.change(text, 1)
    assert taken == []
    assert runtime_config.config == BrokerConfig()
    return caught.value


def test_runtime_config_table_can_be_loaded_again() -> None:
    broker = BrokerConfig(permission=4, auto_create_topics=False, region="x")
    assert load(BrokerConfig, table_of(broker)) == (broker, [])
    store = StoreConfig(
        flush_mode=FlushMode.SYNC,
        disk_clean_ratio=0.6,
        retention_at_hours=(4, 16),
        delay_levels_ms=(1_000, 90_000, 7_200_000, 86_400_000),
    )
    assert load(StoreConfig, table_of(store)) == (store, [])
    assert table_of(store)["messageDelayLevel"] == "1s 90s 2h 1d"
    copies = ReplicationConfig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=3, memory_ratio=0.25)
    assert load(ReplicationConfig, table_of(copies)) == (copies, [])
    assert table_of(ReplicationConfig(ha_secret="x"))["ha_secret"] == "******"


def test_runtime_config_text_has_every_setting_once() -> None:
    runtime_config, _ = made()
    lines = runtime_config.text().decode().splitlines()
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names))
    assert len(names) == len(declarations(BrokerConfig)) + len(declarations(StoreConfig)) + 7
    assert "storePathRootDir=data" in lines


def test_runtime_config_table_has_the_keys_that_rocketmq_tools_read() -> None:
    runtime_config, _ = made()
    table = runtime_config.table()
    assert table["msgTraceTopicName"] == "RMQ_SYS_TRACE_TOPIC"
    assert (table["useTLS"], table["filterServerNums"]) == ("false", "0")
    assert (table["traceTopicEnable"], table["slaveReadEnable"]) == ("true", "false")
    grouped = RuntimeConfig(BrokerConfig(), StoreConfig(), "data", group=Copies)
    assert grouped.table()["slaveReadEnable"] == "true"


def test_runtime_config_masks_secrets() -> None:
    pair = BrokerConfig(cluster_credentials='{"accessKey":"a","secretKey":"hush"}')
    assert table_of(pair)["innerClientAuthenticationCredentials"] == "******"
    assert table_of(BrokerConfig())["innerClientAuthenticationCredentials"] == ""
    assert table_of(ReplicationConfig(ha_secret="hush"))["ha_secret"] == "******"


def test_runtime_config_change_is_passed_to_the_owners() -> None:
    runtime_config, taken = made()
    asked = runtime_config.change(b"# a comment\n\n brokerPermission = 4 \ntopics_max=20\n", 77)
    assert asked == {"brokerPermission": "4", "topics_max": "20"}
    assert taken == [runtime_config.config]
    assert (runtime_config.config.permission, runtime_config.config.topics_max) == (4, 20)
    assert (runtime_config.version.counter, runtime_config.version.timestamp) == (1, 77)
    runtime_config.change(b"autoCreateTopicEnable=false", 78)
    assert runtime_config.config.permission == 4


class Copies:
    """A group whose promise may change, up to three copies."""

    shown = ReplicationConfig(role=BrokerRole.SYNC_MASTER)

    def change(self, settings: ReplicationConfig) -> None:
        if settings.in_sync_replicas > 3:
            raise RequestRejected(ResponseCode.NO_PERMISSION, "too many")
        self.shown = settings


def test_runtime_config_of_the_group_is_changed_by_the_group() -> None:
    group = Copies()
    runtime_config = RuntimeConfig(BrokerConfig(), StoreConfig(), "data", group=lambda: group)
    runtime_config.change(b"inSyncReplicas=3\nslave_timeout_ms=700\nbrokerPermission=4", 1)
    assert (group.shown.in_sync_replicas, group.shown.slave_timeout_ms) == (3, 700)
    assert group.shown.role is BrokerRole.SYNC_MASTER
    assert b"inSyncReplicas=3\n" in runtime_config.text()
    for text in (
        b"inSyncReplicas=4",
        b"inSyncReplicas=0",
        b"inSyncReplicas=x",
        b"brokerRole=SLAVE",
    ):
        with pytest.raises(RequestRejected):
            runtime_config.change(text + b"\nbrokerPermission=6", 2)
    assert (group.shown.in_sync_replicas, runtime_config.config.permission) == (3, 4)


@pytest.mark.parametrize(
    "text",
    [
        b"listenPort=1",
        b"brokerPermission=4\nbrokerName=x",
        b"flushDiskType=SYNC_FLUSH",
        b"inSyncReplicas=2",
        b"raft_secret=x",
        b"messageDelayLevel=1s",
    ],
)
def test_runtime_config_change_with_a_fixed_setting_is_rejected_whole(text: bytes) -> None:
    assert refused(text).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"listenPort=1", "listenPort cannot change while the broker runs: the broker listens"),
        (b"name=x", "name cannot change while the broker runs: clients and NameServers know"),
        (b"maxHashSlotNum=1", "the files of the store are laid out by it"),
        (b"held_pulls_max=7", "it is read when the server starts"),
        (b"inSyncReplicas=2", "this broker does not belong to a master-slave group"),
    ],
)
def test_runtime_config_change_of_a_fixed_setting_gives_the_reason(text: bytes, said: str) -> None:
    remark = refused(text).remark
    assert said in remark
    assert remark.endswith("change it in the settings file and restart the broker")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"storePathRootDir=/x", "storePathRootDir cannot change while the broker runs: the store"),
        (b"filterServerNums=3", "filterServerNums cannot change: this broker starts no filter"),
        (b"useTLS=true\nbrokerPermission=4", "useTLS cannot change: this broker has no TLS"),
    ],
)
def test_runtime_config_change_of_a_fixed_fact_gives_the_reason(text: bytes, said: str) -> None:
    problem = refused(text)
    assert problem.code == ResponseCode.NO_PERMISSION
    assert said in problem.remark


def test_runtime_config_change_knows_every_setting_of_the_table() -> None:
    runtime_config, _ = made()
    remarks = dict[str, str]()
    for name, value in runtime_config.table().items():
        try:
            runtime_config.change(f"{name}={value}".encode(), 1)
        except RequestRejected as error:
            remarks[name] = error.remark
    wrong = {name: said for name, said in remarks.items() if f"{name} cannot change" not in said}
    assert not wrong
    assert {"useTLS", "storePathRootDir", "brokerName", "brokerRole"} <= remarks.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"fileReservedTim=1", "unknown setting 'fileReservedTim'; did you mean fileReservedTime?"),
        (b"retention-hours=1", "did you mean retention_hours?"),
        (b"adminTool=x", "unknown setting 'adminTool'; `tianzhou broker config` lists"),
        (b"=1", "unknown setting ''; `tianzhou"),
        (b"brokerPermission=4\nbrokerPermision=4", "did you mean brokerPermission?"),
    ],
)
def test_runtime_config_change_of_an_unknown_setting_suggests_a_name(
    text: bytes, said: str
) -> None:
    problem = refused(text)
    assert problem.code == ResponseCode.INVALID_PARAMETER
    assert said in problem.remark


@pytest.mark.parametrize(
    "text",
    [
        b"fileReservedTime=-1",
        b"maxMessageSize=5000000",
        b"diskMaxUsedSpaceRatio=90",
        b"deleteWhen=24",
        b"transactionTimeOut=x",
        b"enablePropertyFilter=yes",
    ],
)
def test_runtime_config_change_out_of_bounds_is_rejected(text: bytes) -> None:
    assert refused(text).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "text",
    [
        b"fileReservedTime=-1",
        b"deleteWhen=24",
        b"transactionTimeOut=x",
        b"enablePropertyFilter=x",
        b"retention_at_hours=24",
        b"sql_filters=x",
    ],
)
def test_runtime_config_rejection_uses_the_name_of_the_request(text: bytes) -> None:
    name, _, _ = text.decode().partition("=")
    assert refused(text).remark.startswith(f"{name} = ")


def test_runtime_config_change_of_the_store_applies_after_authentication() -> None:
    runtime_config, taken = made()
    stores: list[StoreConfig] = []
    proofs: list[int] = []
    runtime_config.adopt_store.append(stores.append)
    text = b"fileReservedTime=5\ndeleteWhen=03;15\nmaxMessageSize=2048\ntopics_max=99"
    runtime_config.change(text, 1, before_shared=lambda: proofs.append(1))
    (store,) = stores
    assert (store.retention_hours, store.retention_at_hours) == (5, (3, 15))
    assert (store.message_bytes_max, proofs, len(taken)) == (2048, [1], 1)
    assert b"fileReservedTime=5\n" in runtime_config.text()
    runtime_config.change(b"topics_max=98", 2, before_shared=lambda: proofs.append(1))
    assert (len(stores), proofs) == (1, [1]), "the store did not change"


def test_runtime_config_change_of_the_store_unauthenticated_is_rejected() -> None:
    runtime_config, taken = made()

    def refuse() -> None:
        raise RequestRejected(ResponseCode.NO_PERMISSION, "not signed")

    with pytest.raises(RequestRejected, match="not signed"):
        runtime_config.change(b"fileReservedTime=0\ntopics_max=99", 1, before_shared=refuse)
    assert (taken, runtime_config.config.topics_max) == ([], BrokerConfig().topics_max)
    assert b"fileReservedTime=72\n" in runtime_config.text()


@pytest.mark.parametrize(
    "text",
    [
        b"brokerPermission=7",
        b"brokerPermission=3",
        b"brokerPermission=x",
        b"topics_max=-1",
        b"autoCreateTopicEnable=perhaps",
        b"no sign",
        b"\xff=1",
        b"#" * 70_000,
    ],
)
def test_runtime_config_with_invalid_values_is_rejected(text: bytes) -> None:
    assert refused(text).code == ResponseCode.INVALID_PARAMETER


def test_every_live_setting_has_bounds_or_is_a_switch() -> None:
    """Text, such as a list of NameServers, needs a parser that checks it instead."""
    for config in (BrokerConfig(), StoreConfig(), ReplicationConfig()):
        for name, declared in declarations(type(config)).items():
            if declared.is_live and not isinstance(getattr(config, name), bool | tuple):
                assert declared.minimum is not None or declared.read is not None, name


def test_parse_properties_skips_comments_and_splits_at_the_first_equals() -> None:
    assert parse_properties(b"a=1\r\n!no\nb = x=y\n") == {"a": "1", "b": "x=y"}
