"""How many files and connections fit."""

import resource

import pytest

from tianzhou.net.limits import NetLimits, allow_files, connections_within_files


class Limit:
    """Stands in for the limit of this process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.both = soft, hard
        self.set_count = 0

    def get(self, _: int) -> tuple[int, int]:
        return self.both

    def set(self, _: int, both: tuple[int, int]) -> None:
        self.both = both
        self.set_count += 1


def pretend(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limit:
    limit = Limit(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limit.get)
    monkeypatch.setattr(resource, "setrlimit", limit.set)
    return limit


@pytest.mark.parametrize(
    ("soft", "wanted", "expected"),
    [(1_024, 20_000, 512), (20_000, 20_000, 19_488), (100, 20_000, 50), (20_000, 10, 10),
     (resource.RLIM_INFINITY, 20_000, 20_000)],
)  # fmt: skip
def test_connections_leave_files_for_the_store(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, expected: int
) -> None:
    pretend(monkeypatch, soft, soft)
    assert connections_within_files(wanted) == expected


def test_as_many_files_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = pretend(monkeypatch, 10, 99)
    assert allow_files() == 99
    assert limit.both == (99, 99)
    allow_files()
    assert limit.set_count == 1


def test_relations() -> None:
    bounds = NetLimits()
    assert bounds.write_bytes_max < bounds.unsent_bytes_max
    assert bounds.partial_s < bounds.idle_s
    assert bounds.turn_s < bounds.sweep_s
