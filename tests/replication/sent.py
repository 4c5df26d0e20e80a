"""Responses to the senders of a group, and whether they were true."""

import threading
from collections import Counter
from types import TracebackType
from typing import Final, Self

from ha_cluster import TOPIC, Group, until

from tianzhou.client.errors import ClientError
from tianzhou.client.sync import Producer, PullConsumer
from tianzhou.record.message import Message

SIZE: Final = 200


class Sent:
    """Messages of equal size: logs that diverge may still have records at the same places."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._number = 0
        self.acknowledged: dict[str, tuple[int, int]] = {}
        """By body: queue and offset of every SEND_OK."""
        self.statuses: Counter[str] = Counter()

    def send(self, count: int) -> Counter[str]:
        """Send one message after the other; returns the status of each."""
        statuses: Counter[str] = Counter()
        with Producer("producers", nameserver=self._group.nameserver) as producer:
            for _ in range(count):
                statuses[self._one(producer)] += 1
        return statuses

    def _one(self, producer: Producer) -> str:
        self._number += 1
        body = f"{self._number:06d}".ljust(SIZE, "x")
        try:
            result = producer.send(Message(TOPIC, body.encode()))
        except ClientError:
            status = "UNKNOWN"
        else:
            status = result.status.name
            if status == "SEND_OK":
                self.acknowledged[body] = (result.queue.queue_id, result.queue_offset)
        self.statuses[status] += 1
        return status

    def check(self) -> None:
        """Check that no acknowledged message is lost, and no place was acknowledged twice."""
        until(lambda: not self._missing(), f"all is readable; lost: {len(self._missing())}")
        places = Counter(self.acknowledged.values())
        twice = [place for place, count in places.items() if count > 1]
        assert not twice, f"acknowledged for two messages: {twice[:5]}"

    def _missing(self) -> set[str]:
        """Acknowledged messages that are not stored at the acknowledged place."""
        found = self._stored()
        return {body for body, place in self.acknowledged.items() if found.get(place) != body}

    def _stored(self) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        with PullConsumer("readers", nameserver=self._group.nameserver) as consumer:
            for queue in consumer.queues(TOPIC):
                at, end = consumer.first(queue), consumer.end(queue)
                while at < end:
                    pulled = consumer.pull(queue, at)
                    for message in pulled.messages:
                        place = queue.queue_id, message.queue_offset
                        found[place] = message.body.decode()
                    at = pulled.next_offset
        return found


class Load:
    """Sends from its own thread until the context ends."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._sent.send(5)

    def wait_acknowledged(self, count: int) -> None:
        """Wait until `count` more messages were acknowledged with SEND_OK."""
        wanted = self._sent.statuses["SEND_OK"] + count
        until(
            lambda: self._sent.statuses["SEND_OK"] >= wanted,
            f"{count} more are acknowledged: {self._sent.statuses}",
            wait_s=60,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
