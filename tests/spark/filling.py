"""Messages for tests, sent with handmade requests, so that a test can set any of their fields."""

import time
from types import TracebackType
from typing import Self

from clients.waiting import wait_until
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.transport.blocking import Request
from tianzhou.record import compression, flags, properties
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.queues import MessageQueue


class Filling:
    def __init__(self, nameserver: str) -> None:
        self.brokers = Brokers(nameserver, retry_s=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.brokers.close()

    def send(
        self, topic: str, body: bytes, *, queue: int = 0, compressed: int = 0, **texts: str
    ) -> None:
        """Build one message; property names are used as given."""
        sys_flag = flags.COMPRESSED | compressed if compressed else 0
        ext = {
            "a": "filling",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": str(sys_flag),
            "g": str(int(time.time() * 1000)),
            "h": "0",
            "i": properties.encode(texts).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        route = self.brokers.publish_route(topic)
        address = route.address(route.write_queues[0].broker_name)
        assert address is not None
        stored = compression.compress(body, sys_flag)
        header, _ = self.brokers.connection(address).call(
            Request(RequestCode.SEND_MESSAGE_V2, ext, stored)
        )
        assert header.code == ResponseCode.SUCCESS, header.remark

    def many(self, topic: str, count: int, *, first: int = 0, size: int = 0) -> list[str]:
        """Send numbered messages round-robin to the queues, and return their bodies."""
        self.send_first(topic)
        queues = len(self.queues(topic))
        sender = BatchSender(self.brokers, "filling")
        bodies = [f"{number:08d}".ljust(size, ".") for number in range(first, first + count)]
        for number, body in enumerate(bodies):
            text = b"TAGS\x01tag-%d\x02KEYS\x01k%d\x02number\x01%d\x02" % (
                number % 3,
                number,
                number,
            )
            sender.add(topic, Entry(body.encode(), text), sharding_key="abcdefgh"[number % queues])
        sender.flush()
        return bodies

    def send_first(self, topic: str) -> None:
        """Create the topic, so that its queues are known."""
        route = self.brokers.publish_route(topic)
        if route.is_borrowed:
            self.create(topic, 4)

    def create(self, topic: str, queues: int, broker: str | None = None) -> None:
        """Send to one broker, or to all brokers that create topics."""
        route = self.brokers.publish_route("brand-new-topic")
        for name in route.brokers if broker is None else (broker,):
            ext = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            address = route.address(name)
            assert address is not None
            header, _ = self.brokers.connection(address).call(
                Request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            )
            assert header.code == ResponseCode.SUCCESS, header.remark
        self.brokers.forget(topic)
        whole = queues * (len(route.brokers) if broker is None else 1)
        wait_until(lambda: self._has_queues(topic, whole), within_s=10, what=f"{topic} is known")

    def _has_queues(self, topic: str, count: int) -> bool:
        self.brokers.forget(topic)
        route = self.brokers.publish_route(topic)
        return not route.is_borrowed and len(route.read_queues) >= count

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self.brokers.route(topic).read_queues

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset of the next message by queue id."""
        found = self.brokers.max_offsets(self.queues(topic))
        return {queue.queue_id: offset for queue, offset in found.items()}
