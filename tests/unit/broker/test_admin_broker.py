"""Settings, state and statistics as tools ask for them; refusals."""

import pytest
from administrator import Administrator, make_topic

from tianzhou.broker.handlers.refusals import REFUSED
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode


def test_a_broker_is_drained_and_opened_again() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.UPDATE_BROKER_CONFIG
    broker.send("orders")
    assert tool.ask(code, b"brokerPermission=4\n").code == 0
    assert broker.send("orders").code == ResponseCode.NO_PERMISSION
    assert b"brokerPermission=4\n" in tool.ask(RequestCode.GET_BROKER_CONFIG).body
    assert tool.ask(code, b"brokerPermission=6\n").code == 0
    assert broker.send("orders").code == 0


def test_settings_are_taken_by_those_who_use_them() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.UPDATE_BROKER_CONFIG
    text = b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\nclient_expiry_ms=2000"
    assert tool.ask(code, text).code == 0
    assert broker.send("new").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.parts.clients.groups.obtain("new") is None
    assert broker.parts.clients.config.client_expiry_ms == 2000


def test_the_version_of_the_settings_moves() -> None:
    tool = Administrator(SmallBroker())
    before = tool.ask(RequestCode.GET_BROKER_CONFIG).ext["version"]
    tool.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
    assert tool.ask(RequestCode.GET_BROKER_CONFIG).ext["version"] != before


def test_the_state_is_a_table_of_text() -> None:
    broker = SmallBroker()
    table = Administrator(broker).ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert table["brokerVersionDesc"] == "V5_3_3"


def test_statistics_over_a_minute_an_hour_and_a_day() -> None:
    broker = SmallBroker()
    stats = broker.parts.stats
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
def test_statistics_that_are_not_kept(name: str, key: str) -> None:
    tool = Administrator(SmallBroker())
    answer = tool.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_expired_files_go_when_somebody_says_so() -> None:
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


def test_tables_for_slaves() -> None:
    broker = SmallBroker()
    tool = Administrator(broker)
    assert tool.ask(RequestCode.GET_ALL_DELAY_OFFSET).json["offsetTable"] == {}
    assert tool.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).json == {"messageRequestModeMap": {}}
    status = tool.ask(RequestCode.GET_BROKER_HA_STATUS).json
    assert status["master"] is True
    assert status["haConnectionInfo"] == []


@pytest.mark.parametrize("code", list(REFUSED), ids=lambda code: code.name)
def test_refusals_say_why(code: RequestCode) -> None:
    answer = Administrator(SmallBroker()).ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f"{code.name}: {REFUSED[code]}"


def test_codes_that_nobody_knows() -> None:
    answer = Administrator(SmallBroker()).ask(99_999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
