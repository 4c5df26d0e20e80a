"""When received bytes arrived: in the kernel, and while the event loop stood still."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from tianzhou.net.arrivals import (
    BEAT_S,
    LARGE_READ_BYTES,
    STOOD_STILL_S,
    Arrival,
    Pulse,
    count_unread,
)


class PulseLoop:
    """A loop whose rounds and timers a test runs, in the order of asyncio: what was scheduled in
    the last round, then sockets, then timers."""

    def __init__(self) -> None:
        self.now = 50.0
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.pulse = Pulse(cast("asyncio.AbstractEventLoop", self))

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay_s, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def round(self, after_s: float = 0.0) -> float:
        """One round, in which one socket is read; returns how long its bytes may have waited."""
        self.now += after_s
        soon, self.soon = self.soon, []
        for callback, args in soon:
            callback(*args)
        pulse = self.pulse
        arrived = self.now if self.now < pulse.overdue_at_s else pulse.before_pause(self.now)
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback in due:
            callback()
        return self.now - arrived


def started_loop() -> PulseLoop:
    made = PulseLoop()
    made.pulse.start()
    return made


def test_pulse_of_a_running_loop_dates_reads_as_they_are() -> None:
    loop = started_loop()
    assert [loop.round(BEAT_S / 2) for _ in range(100)] == [0.0] * 100


def test_pulse_of_an_idle_loop_whose_timers_run_dates_reads_as_they_are() -> None:
    loop = started_loop()
    for _ in range(20):
        assert loop.round(BEAT_S) == 0.0


def test_pulse_of_a_busy_machine_ignores_a_short_pause() -> None:
    loop = started_loop()
    assert loop.round(STOOD_STILL_S) == 0.0


def test_pulse_after_a_pause_dates_the_reads_of_two_rounds_before_it() -> None:
    loop = started_loop()
    loop.round(0.1)
    assert loop.round(5.0) == pytest.approx(5.1), "since the last beat"
    assert loop.round() == pytest.approx(5.1), "it polled only now what arrived meanwhile"
    assert loop.round() == 0.0
    assert [loop.round(BEAT_S / 2) for _ in range(20)] == [0.0] * 20
    assert loop.round(2.0) > STOOD_STILL_S, "it detects the next pause"


def test_pulse_that_is_stopped_detects_nothing() -> None:
    loop = started_loop()
    loop.pulse.stop()
    assert loop.round(60.0) == 0.0
    assert loop.timers == []


def test_arrival_of_bytes_that_the_kernel_had_is_when_it_was_asked() -> None:
    arrival = Arrival(0.0)
    arrival.at_s = 10.0
    arrival.read(LARGE_READ_BYTES, 10.0, lambda: 3 * LARGE_READ_BYTES)
    assert arrival.at_s == 10.0, "nothing was known of these"
    for read_at in (11.0, 12.0, 13.0):
        arrival.at_s = read_at
        arrival.read(LARGE_READ_BYTES, read_at, lambda: 0)
        assert arrival.at_s == 10.0
    arrival.at_s = 14.0
    arrival.read(100, 14.0, lambda: 0)
    assert arrival.at_s == 14.0, "these came later"


def test_arrival_of_a_read_that_is_partly_new_counts_as_new() -> None:
    arrival = Arrival(0.0)
    arrival.read(LARGE_READ_BYTES, 10.0, lambda: 100)
    arrival.at_s = 11.0
    arrival.read(101, 11.0, lambda: 7)
    assert arrival.at_s == 11.0
    assert (arrival.unread_bytes, arrival.unread_at_s) == (7, 11.0), "it was asked again"


def test_arrival_keeps_the_oldest_answer_of_the_kernel() -> None:
    arrival = Arrival(0.0)
    arrival.ask(10.0, lambda: 500)
    arrival.ask(11.0, lambda: 900)
    assert (arrival.unread_bytes, arrival.unread_at_s) == (500, 10.0)


def test_count_unread_asks_the_kernel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert count_unread(ours.fileno()) == 0
        theirs.sendall(bytes(1234))
        assert count_unread(ours.fileno()) == 1234
        ours.recv(34)
        assert count_unread(ours.fileno()) == 1200
    assert count_unread(ours.fileno()) == 0, "closed"
