"""Settings, state and statistics as tools ask for them; refusals."""

from dataclasses import replace

import pytest
from administrator import Administrator, make_topic
from transactional import GROUP, send_half

from tianzhou.broker.rejections import REFUSED
from tianzhou.net.rpc import RequestRejected
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode


def test_broker_permission_change_drains_and_reopens_the_broker() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.UPDATE_BROKER_CONFIG
    broker.send("orders")
    assert tool.ask(code, b"brokerPermission=4\n").code == 0
    assert broker.send("orders").code == ResponseCode.NO_PERMISSION
    assert b"brokerPermission=4\n" in tool.ask(RequestCode.GET_BROKER_CONFIG).body
    assert tool.ask(code, b"brokerPermission=6\n").code == 0
    assert broker.send("orders").code == 0


def test_config_change_applies_to_topics_groups_and_clients() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.UPDATE_BROKER_CONFIG
    text = b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\nclient_expiry_ms=2000"
    assert tool.ask(code, text).code == 0
    assert broker.send("new").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.slices.groups.clients.groups.obtain("new") is None
    assert broker.slices.groups.clients.config.client_expiry_ms == 2000


def change(broker: SmallBroker, text: bytes) -> None:
    answer = Administrator(broker).ask(RequestCode.UPDATE_BROKER_CONFIG, text)
    assert answer.code == 0, answer.remark


def test_config_change_of_the_message_size_applies_to_the_next_send() -> None:
    broker = SmallBroker()
    assert broker.send("orders", bytes(3_000)).code == 0
    change(broker, b"maxMessageSize=2048")
    for _ in range(2):  # the topic is known by now, so sends go the short way
        assert broker.send("orders", bytes(3_000)).code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.send("orders", bytes(2_000)).code == 0
    change(broker, b"maxMessageSize=4096")
    assert broker.send("orders", bytes(3_000)).code == 0


def test_config_change_of_sql_filters_applies_to_cached_expressions() -> None:
    broker = SmallBroker()
    filters = broker.slices.groups.clients.filters
    assert filters.get("SQL92", "a > 1").expression is not None
    change(broker, b"enablePropertyFilter=false")
    with pytest.raises(RequestRejected, match="does not support"):
        filters.get("SQL92", "a > 1")
    change(broker, b"enablePropertyFilter=true")
    assert filters.get("SQL92", "a > 1").expression is not None


def test_config_change_of_transactions_applies_to_checks_and_sends() -> None:
    broker = SmallBroker()
    producer = RecordingPeer()
    broker.heartbeat(producer, "c", producers=(GROUP,))
    change(broker, b"transactionTimeOut=60000\ntransactionCheckMax=1")
    send_half(broker)
    broker.run(seconds=30)
    assert not producer.take_told(), "not asked before the new time"
    broker.run(seconds=40)
    assert len(producer.take_told()) == 1
    change(broker, b"rejectTransactionMessage=true")
    named = {"TRAN_MSG": "true", "PGROUP": GROUP}
    assert broker.send("orders", b"x", named, sys_flag=4).code == ResponseCode.NO_PERMISSION


def test_config_change_disables_long_polling() -> None:
    broker = SmallBroker()
    broker.send("orders")
    change(broker, b"longPollingEnable=false\nshortPollingTimeMills=500")
    assert not broker.slices.fetch.pull._config.long_polling
    assert broker.slices.fetch.pull._config.short_polling_ms == 500


def test_config_change_applies_to_watchdog_timers_and_saving() -> None:
    broker = SmallBroker()
    change(broker, b"consumer_stuck_after_ms=5000\ntimerMaxDelaySec=10")
    assert broker.slices.observe.watchdog.stuck_after_ms == 5_000
    late = {"TIMER_DELAY_SEC": "11"}
    assert broker.send("orders", b"x", late).code == ResponseCode.MESSAGE_ILLEGAL


def fill(broker: SmallBroker, files: int) -> None:
    start = len(broker.store.log.segments)
    while len(broker.store.log.segments) < start + files:
        assert broker.send("filling", bytes(30_000)).code == 0


def test_config_change_of_retention_keeps_files_of_waiting_messages() -> None:
    """A file in the middle has a timed message that the shorter retention would take."""
    config = replace(STORE, commit_log_file_bytes=256 * 1024, retention_hours=72)
    broker = SmallBroker(store_config=config)
    fill(broker, 2)
    assert broker.send("orders", b"timed", {"TIMER_DELAY_SEC": str(40 * 3_600)}).code == 0
    fill(broker, 3)
    broker.run(seconds=1)
    log = broker.store.log
    broker.clock.advance(seconds=30 * 3_600)
    assert broker.store.clean(by_hand=True, wait=True) == 0
    change(broker, b"fileReservedTime=10")
    broker.store.clean(by_hand=True, wait=True)
    timed = broker.messages("rmq_sys_wheel_timer")[0]
    assert 0 < log.min_offset <= timed.physical_offset
    broker.run(seconds=1)
    broker.clock.advance(seconds=10 * 3_600)
    broker.run(seconds=2)
    assert broker.bodies("orders") == [b"timed"]
    broker.store.clean(by_hand=True, wait=True)
    assert log.min_offset > timed.physical_offset, "what was delivered holds nothing back"


def test_config_version_grows_with_each_change() -> None:
    tool = Administrator(SmallBroker())
    before = tool.ask(RequestCode.GET_BROKER_CONFIG).ext["version"]
    tool.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
    assert tool.ask(RequestCode.GET_BROKER_CONFIG).ext["version"] != before


def test_runtime_state_is_a_table_of_strings() -> None:
    broker = SmallBroker()
    table = Administrator(broker).ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert table["brokerVersionDesc"] == "V5_3_3"


def test_stats_data_covers_a_minute_an_hour_and_a_day() -> None:
    broker = SmallBroker()
    stats = broker.slices.base.stats
    stats.put("orders", 10, 1000)
    stats.put("orders", 20, 3000)
    stats.got("orders", "readers", 6, 600)
    stats.sent_back("orders", "readers")
    broker.run(seconds=30, step_ms=1000)
    tool, code = Administrator(broker), RequestCode.VIEW_BROKER_STATS_DATA
    found = tool.ask(code, statsName="TOPIC_PUT_NUMS", statsKey="orders").json
    assert found["statsMinute"] == {"avgpt": 15.0, "sum": 30, "tps": 1.0}
    assert found["statsHour"]["sum"] == found["statsDay"]["sum"] == 30
    sizes = tool.ask(code, statsName="TOPIC_PUT_SIZE", statsKey="orders").json
    assert sizes["statsMinute"]["sum"] == 4000
    for name, key, total in (
        ("GROUP_GET_NUMS", "orders@readers", 6),
        ("GROUP_GET_SIZE", "orders@readers", 600),
        ("SNDBCK_PUT_NUMS", "orders@readers", 1),
        ("BROKER_PUT_NUMS", "DefaultCluster", 30),
        ("BROKER_GET_NUMS", "DefaultCluster", 6),
    ):
        found = tool.ask(code, statsName=name, statsKey=key).json
        assert found["statsMinute"]["sum"] == total


@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "x"), ("GROUP_GET_NUMS", "orders"), ("COLOUR", "orders")]
)
def test_stats_data_of_an_unknown_name_or_key_is_rejected(name: str, key: str) -> None:
    tool = Administrator(SmallBroker())
    answer = tool.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_expired_files_are_deleted_on_request() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    for _ in range(3):
        broker.send("orders", bytes(600_000))
    broker.flush()
    broker.clock.advance(hours=73)
    tool = Administrator(broker)
    assert tool.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert broker.store.watermarks.minimum > 0
    assert tool.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0


def test_slave_tables_of_a_new_broker_are_empty() -> None:
    broker = SmallBroker()
    tool = Administrator(broker)
    assert tool.ask(RequestCode.GET_ALL_DELAY_OFFSET).json["offsetTable"] == {}
    assert tool.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).json == {"messageRequestModeMap": {}}
    status = tool.ask(RequestCode.GET_BROKER_HA_STATUS).json
    assert status["master"] is True
    assert status["haConnectionInfo"] == []


@pytest.mark.parametrize("code", list(REFUSED), ids=lambda code: code.name)
def test_rejected_request_codes_return_the_reason(code: RequestCode) -> None:
    answer = Administrator(SmallBroker()).ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f"{code.name}: {REFUSED[code]}"


def test_unknown_request_codes_are_rejected() -> None:
    answer = Administrator(SmallBroker()).ask(99_999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
