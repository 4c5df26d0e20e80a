"""Faults of the test kit: each takes effect, is limited to its target, and ends."""

import time

import pytest

from abuse.raw_client import HungUp, RawClient, heartbeat_of, pull_of, request, send_v1, send_v2
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.testing import RunningBroker, running_broker
from tianzhou.testing.kit.stopwatch import Stopwatch
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import ONEWAY_FLAG

SEND = RequestCode.SEND_MESSAGE_V2


def bodies(mq: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in mq.stored(topic)]


def test_rejected_sends_fault_lasts_until_its_end(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as client:
        with mq.faults.refuse_sends() as fault:
            answer = client.ask(SEND, send_v2("orders"), b"1")
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "refused by the test")
            assert client.ask(SEND, send_v2("orders"), b"1", binary=True).code == answer.code
            assert client.ask(RequestCode.SEND_MESSAGE, send_v1("orders"), b"1").code == answer.code
            assert fault.hits == 3
        assert client.ask(SEND, send_v2("orders"), b"2").code == 0
        assert fault.hits == 3
    assert bodies(mq, "orders") == [b"2"]


def test_rejected_sends_fault_is_limited_to_count_and_topic(mq: RunningBroker) -> None:
    code = ResponseCode.FLUSH_DISK_TIMEOUT
    with RawClient(mq.broker) as client:
        fault = mq.faults.refuse_sends(code, topic="orders", count=2, remark="slow disk")
        codes = [client.ask(SEND, send_v2(t), b"x").code for t in ("orders", "other", "orders")]
        assert codes == [code, 0, code]
        assert client.ask(SEND, send_v2("orders"), b"x").code == 0
        assert fault.hits == 2
        fault.end()
        fault.end()


def test_rejected_sends_fault_counts_sends_within_one_read(mq: RunningBroker) -> None:
    wanted: dict[int, int] = {}
    data = b""
    for number in range(20):
        topic = "orders" if number % 3 else "other"
        opaque, one = request(SEND, send_v2(topic), b"%d" % number)
        wanted[opaque] = 0 if topic == "other" else ResponseCode.SYSTEM_BUSY
        data += one
    _, oneway = request(SEND, send_v2("orders"), b"said and gone", flag=ONEWAY_FLAG)
    with mq.faults.refuse_sends(topic="orders"), RawClient(mq.broker) as client:
        client.send(data + oneway)
        answers = [client.receive().header for _ in wanted]
        assert {header.opaque: header.code for header in answers} == wanted
        with pytest.raises(TimeoutError):
            client.receive(0.05)
    assert len(mq.stored("other")) == 7
    assert mq.stored("orders") == []


def test_rejected_requests_fault_applies_to_any_code(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    with RawClient(mq.broker) as client:
        pull = pull_of("orders")
        with mq.faults.refuse([RequestCode.PULL_MESSAGE], ResponseCode.NO_PERMISSION):
            assert client.ask(RequestCode.PULL_MESSAGE, pull).code == ResponseCode.NO_PERMISSION
            assert client.ask(SEND, send_v2("orders"), b"1").code == 0
        assert client.ask(RequestCode.PULL_MESSAGE, pull).code == 0


@pytest.mark.slow
def test_slow_broker_fault_delays_only_responses(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as client:
        with mq.faults.slow(seconds=0.3):
            start = time.monotonic()
            client.send(request(SEND, send_v2("orders"), b"1")[1])
            mq.wait_until(lambda: bodies(mq, "orders") == [b"1"])
            assert client.receive().code == 0
            assert time.monotonic() - start >= 0.3
        watch = Stopwatch()
        assert client.ask(SEND, send_v2("orders"), b"2").code == 0
        assert watch.seconds() < 0.3


def test_full_disk_fault_rejects_sends_and_recovers(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as client:
        assert client.ask(SEND, send_v2("orders"), b"1").code == 0
        # A new group would have to be saved.
        assert client.ask(RequestCode.PULL_MESSAGE, pull_of("orders")).code == 0
        with mq.faults.full_disk():
            answer = client.ask(SEND, send_v2("orders"), b"2")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "100% full" in answer.remark
            assert "writes are refused: the disk" in mq.describe()
            # Stored messages can be read, and time passes without errors.
            assert b"1" in client.ask(RequestCode.PULL_MESSAGE, pull_of("orders")).body
            mq.clock.advance(hours=1)
        assert client.ask(SEND, send_v2("orders"), b"3").code == 0
    assert bodies(mq, "orders") == [b"1", b"3"]


@pytest.mark.slow
def test_full_disk_fault_does_not_stop_periodic_tasks(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever cannot be saved is saved later, and no periodic task fails: this test would fail at
    its end because of unhandled errors in the event loop."""
    config = BrokerConfig(offsets_save_ms=100, delay_progress_save_interval_ms=100)
    delayed = send_v2("orders", properties="DELAY\x011\x02")
    where = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    with running_broker(config=config) as mq, RawClient(mq.broker) as client:
        assert client.ask(SEND, send_v2("orders"), b"0").code == 0
        assert client.ask(SEND, delayed, b"1").code == 0
        client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, where | {"commitOffset": "0"})
        fault = mq.faults.full_disk()
        mq.clock.advance(hours=1)
        assert bodies(mq, "orders") == [b"0"]
        assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, where).code == 0
        mq.wait_until(lambda: "progress.not_saved" in caplog.text)
        fault.end()
        mq.clock.advance(seconds=1)
        assert bodies(mq, "orders") == [b"0", b"1"]
        saved = mq.directory / "store/config/consumerOffset.json"
        mq.wait_until(lambda: saved.exists() and "billing" in saved.read_text())
        mq.kill()
        mq.start()
        assert mq.committed("billing", "orders") == {0: 1}


def test_cut_connections_fault_closes_connections(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as one, RawClient(mq.broker) as other:
        for name, client in (("one", one), ("other", other)):
            beat = heartbeat_of(client=name, producers=("p",))
            assert client.ask(RequestCode.HEART_BEAT, body=beat).code == 0
        assert mq.faults.cut_connections("one") == 1
        with pytest.raises(HungUp):
            one.receive()
        assert other.ask(SEND, send_v2("orders"), b"1").code == 0
        mq.wait_until(lambda: "clients: other" in mq.describe())
        with pytest.raises(UsageError, match="'one' is not connected; connected are: other"):
            mq.faults.cut_connections("one")
        assert mq.faults.cut_connections() == 1
        with pytest.raises(HungUp):
            other.receive()
    assert mq.faults.cut_connections() == 0


def test_faults_survive_a_restart(mq: RunningBroker) -> None:
    with mq.faults.refuse_sends() as fault:
        mq.restart()
        with RawClient(mq.broker) as client:
            assert client.ask(SEND, send_v2("orders"), b"1").code == ResponseCode.SYSTEM_BUSY
        mq.kill()
        mq.start()
        with RawClient(mq.broker) as client:
            assert client.ask(SEND, send_v2("orders"), b"1").code == ResponseCode.SYSTEM_BUSY
        assert fault.hits == 2


def test_invalid_faults_raise_clear_errors(mq: RunningBroker) -> None:
    with pytest.raises(UsageError, match="count must be at least 1, got 0"):
        mq.faults.refuse_sends(count=0)
    with pytest.raises(UsageError, match="at least one request code"):
        mq.faults.refuse([])
    with pytest.raises(UsageError, match="seconds must be above 0, got 0"):
        mq.faults.slow(seconds=0)
