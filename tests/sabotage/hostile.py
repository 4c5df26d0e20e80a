"""Hostile clients and failing disks in brief: tests/abuse has the full suites."""

import errno
from typing import Final

from tianzhou.base.kinds import PhysicalOffset, queue_key
from tianzhou.broker.names import HALF_TOPIC
from tianzhou.record.chunk import Entry, build
from tianzhou.store import append_check
from tianzhou.store.scan import LogScan
from tianzhou.store.segments import Segment
from tianzhou.store.verify import Directory
from tianzhou.testing import stored_form
from tianzhou.testing.sim.disk import SimDisk, SimFile
from tianzhou.testing.small_broker import ROOT, STORE, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

TOPIC: Final = "orders"
KEY: Final = queue_key(TOPIC, 0)


def attack() -> None:
    layout_bits()
    malformed_record()
    extreme_tries()
    unreadable_page()
    forged_orders()
    lost_halves()


def layout_bits() -> None:
    broker = SmallBroker()
    for claim in (0, 0x10, 0x20, 0x30):
        assert broker.send(TOPIC, b"x", sys_flag=claim).code == 0
    broker.kill()
    assert broker.bodies(TOPIC) == [b"x"] * 4
    broker.stop()
    directory = Directory(broker.disk, ROOT, STORE)
    found = directory.verify(lambda _done, _total: None)
    directory.close()
    assert found.is_sound, found


def malformed_record() -> None:
    """Write a malformed record with a valid checksum, as a bug of ours once did."""
    broker = SmallBroker()
    append_check.remove(stored_form.check_chunk)
    try:
        for claim in (0, 0x10, 0x30, 0):
            entry = Entry(KEY, b"body", b"UNIQ_KEY\x01U\x02")
            chunk = build([entry], store_host=bytes(8), record_crc=True)
            chunk.data[39] |= claim
            broker.store.append(chunk)
        broker.store.dispatch_all()
    finally:
        stored_form.install()
    assert broker.bodies(TOPIC) == [b"body"] * 2
    assert len(broker.store.damaged) == 2
    broker.kill()
    assert broker.bodies(TOPIC) == [b"body"] * 2


def extreme_tries() -> None:
    broker = SmallBroker()
    broker.send(TOPIC, b"x", reconsume_times=(1 << 31) - 1)
    (message,) = broker.messages(TOPIC)
    back = {"group": "g", "offset": str(message.physical_offset), "delayLevel": "0"}
    answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert answer is not None
    assert answer.code == 0


def forged_orders() -> None:
    broker = SmallBroker()
    assert broker.send("rmq_sys_raft_metadata").code == ResponseCode.NO_PERMISSION
    assert broker.send(TOPIC, sys_flag=4).code == ResponseCode.MESSAGE_ILLEGAL


def lost_halves() -> None:
    broker = SmallBroker()
    named = {"TRAN_MSG": "true", "PGROUP": "p"}
    for body in (b"undecided", b"committed"):
        assert broker.send(TOPIC, body, named, sys_flag=4).code == 0
    second = broker.messages(HALF_TOPIC)[1]
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": "1",
        "commitOrRollback": "8",
        "msgId": "",
        "commitLogOffset": str(second.physical_offset),
    }
    broker.ask(RequestCode.END_TRANSACTION, end)
    (message,) = broker.messages(TOPIC)
    back = {"group": "g", "offset": str(message.physical_offset), "delayLevel": "0"}
    broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    broker.kill()
    assert broker.metric("pending_transactions") == 1
    progress = {"topic": HALF_TOPIC, "queueId": "0", "commitOffset": "2"}
    group = {"consumerGroup": "CID_RMQ_SYS_TRANS"}
    broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, progress | group)
    broker.save_offsets()
    broker.kill()
    assert broker.metric("pending_transactions") == 1


class BadSectors(SimFile):
    """A file that can be written but not read."""

    def pread(self, at: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error", self.path)


def unreadable_page() -> None:
    disk = SimDisk()
    disk.make_dirs("log")
    file = disk.create("log/0", 4096)
    segment = Segment(BadSectors(disk, file.path, file._inode), PhysicalOffset(0), reserved=0)
    scan = LogScan([segment], 4096, PhysicalOffset(0))
    assert list(scan) == []
    assert not scan.halt.is_bare
