"""Places at the port for slaves."""

import pytest

from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_places import (
    SLAVES_MAX,
    SLAVES_PER_HOST_MAX,
    WAITING_MAX,
    WAITING_PER_HOST_MAX,
    WAITING_S,
    Places,
)


def test_waiting_over_the_cap_of_an_address_drops_its_longest_waiting() -> None:
    places: Places[int] = Places()
    assert places.wait(1000, "b", 0.0) == []
    for number in range(WAITING_PER_HOST_MAX):
        assert places.wait(number, "a", 0.0) == []
    assert places.wait(99, "a", 0.0) == [0], "not the one from another address"


def test_waiting_over_the_cap_of_all_drops_the_longest_waiting() -> None:
    places: Places[int] = Places()
    for number in range(WAITING_MAX):
        assert places.wait(number, f"host-{number}", 0.0) == []
    assert places.wait(99, "another", 0.0) == [0]


def test_waiting_ends_at_an_absolute_deadline() -> None:
    places: Places[int] = Places()
    places.wait(1, "a", 10.0)
    places.wait(2, "a", 11.0)
    assert places.late(10.0 + WAITING_S - 0.1) == []
    assert places.late(10.0 + WAITING_S) == [1]
    places.stream(2)
    assert places.late(1_000.0) == [1], "a slave may stay"


def test_streaming_is_capped_per_address_and_in_all() -> None:
    places: Places[int] = Places()
    for number in range(SLAVES_PER_HOST_MAX):
        places.wait(number, "a", 0.0)
        places.stream(number)
    places.wait(98, "a", 0.0)
    with pytest.raises(PeerRefused, match="at a follow already"):
        places.stream(98)
    places.leave(0)
    places.stream(98)
    for number in range(100, 100 + SLAVES_MAX - SLAVES_PER_HOST_MAX):
        places.wait(number, f"host-{number}", 0.0)
        places.stream(number)
    places.wait(99, "b", 0.0)
    with pytest.raises(PeerRefused, match=f"{SLAVES_MAX} slaves follow already"):
        places.stream(99)


def test_leaving_makes_room() -> None:
    places: Places[int] = Places()
    for number in range(WAITING_PER_HOST_MAX):
        places.wait(number, "a", 0.0)
    places.leave(3)
    places.leave(3)
    assert places.wait(99, "a", 0.0) == []
