"""The state of a broker as a table of text."""

from pathlib import Path

import pytest
from administrator import Administrator

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.wiring import build, route
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.small_broker import HOST, STORE, SmallBroker
from tianzhou.wire._generated_codes import RequestCode

KEYS = """
    brokerVersionDesc brokerVersion putTps getTransferredTps getTransferedTps getFoundTps
    getMissTps getTotalTps sendThreadPoolQueueSize pullThreadPoolQueueSize
    sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
    pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio timerReadBehind
    timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps brokerActive
    msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow bootTimestamp
    runtime putMessageTimesTotal putMessageSizeTotal putMessageAverageSize
    putMessageEntireTimeMax putMessageDistributeTime putLatency99 putLatency999
    getMessageEntireTimeMax dispatchMaxBuffer dispatchBehindBytes
    startAcceptSendRequestTimeStamp remainTransientStoreBufferNumbs remainHowManyDataToCommit
    remainHowManyDataToFlush EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
    consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset litePullThreadPoolQueueSize
    queryThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills
"""


def table_of(broker: SmallBroker) -> dict[str, str]:
    return Administrator(broker).ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]


def test_runtime_info_has_every_key_that_tools_read() -> None:
    table = table_of(SmallBroker())
    assert not [key for key in KEYS.split() if key not in table]
    assert table["earliestMessageTimeStamp"] == "-1"


def test_runtime_info_has_the_measured_numbers() -> None:
    broker = SmallBroker()
    broker.send("orders")
    sent = broker.slices.base.stats.puts
    broker.run(seconds=3, step_ms=1000)
    broker.slices.base.stats.put("orders", 20 - sent.count, 2000 - sent.size)
    assert sum(broker.slices.base.stats.put_latency.ranges.buckets) == 1  # the one that was sent
    broker.slices.base.stats.put_latency.ranges.add(7)
    broker.run(seconds=1, step_ms=1000)
    table = table_of(broker)
    assert table["putTps"] == "5.0 5.0 5.0"
    assert table["putMessageTimesTotal"] == "20"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["putMessageEntireTimeMax"] == "7"
    assert "[0~10ms]:1" in table["putMessageDistributeTime"]
    assert table["msgPutTotalTodayNow"] == "20"
    assert table["commitLogMaxOffset"] == str(broker.store.watermarks.appended)
    assert table["earliestMessageTimeStamp"] == str(broker.clock.now_ms() - 4000)
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 4 seconds ]"


def test_runtime_info_has_position_and_end_of_delay_levels() -> None:
    broker = SmallBroker()
    broker.send("orders", named={"DELAY": "1"})
    broker.run(seconds=2)
    broker.send("orders", named={"DELAY": "1"})
    assert table_of(broker)["scheduleMessageOffset_1"] == "1,2"


@pytest.mark.parametrize("size", [0, 1023, 1024, 1536, 3 << 30, 5 << 60])
def test_runtime_info_formats_sizes_with_binary_units(size: int) -> None:
    from tianzhou.broker.observe.admin import _size_text

    shown = {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1536: "1.5 KiB",
        3 << 30: "3.0 GiB",
        5 << 60: "5120.0 PiB",
    }
    assert _size_text(size) == shown[size]


def test_runtime_info_measures_a_real_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore(RealFiles(), str(tmp_path / "store"), STORE, clock)
    try:
        slices = build(
            BrokerConfig(),
            store,
            clock,
            Standalone("broker-a", store),
            store_host=HOST,
        )
        assert RequestCode.GET_BROKER_RUNTIME_INFO in route(slices).router.codes
        from tianzhou.broker.observe.admin import Runtime

        runtime = Runtime(
            store=store,
            stats=slices.base.stats,
            held_pulls=lambda: 3,
            waiting_answers=lambda: 2,
            waiting_ms=lambda: 7,
            delay_table=store.tables.delay_offsets.load,
            held_pulls_max=9,
        )
        table = runtime.table(clock.now_ms())
        # As the store computes it: blocks reserved for root are left out.
        assert float(table["commitLogDiskRatio"]) == pytest.approx(store.usage.used_ratio, abs=0.05)
        assert table["commitLogDirCapacity"].startswith("Total : ")
        assert table["pullThreadPoolQueueSize"] == "3"
        assert table["sendThreadPoolQueueSize"] == "2"
        assert table["sendThreadPoolQueueHeadWaitTimeMills"] == "7"
        assert table["queuesDiskRatio"] == table["consumeQueueDiskRatio"]
    finally:
        store.close()
