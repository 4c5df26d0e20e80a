"""Numbers that may only go down. `make house` prints them with their targets, and
`.venv/bin/python tools/house.py LIST` prints the places behind a number."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from sources import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import house
import structure

MOST = {
    "signatures": 0,
    "classes": 0,
    "importers": 32,
    "store": 35,
    "sockets": 3,
    "banned": 24,
    "banned-visible": 0,
}
"""What `tools/house.py LIST` may find. After a change that lowers a number, lower it here."""


@pytest.mark.parametrize("name", MOST)
def test_ratchet_count_does_not_grow(name: str) -> None:
    found = [str(place) for place in house.LISTS[name]()]
    assert len(found) <= MOST[name], "\n".join(["", *found])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("whoever reads this", 1),
        ("Nobody was told, and so many came anew.", 3),
        ("the moment at which", 1),
        ("this is no name", 1),
        ("if there is no name", 0),
        ("until there are none", 0),
        ("it is no longer needed", 0),
        ("if value is None and is none", 1),
        ("recommend, amended", 0),
    ],
)
def test_ban_list_finds_private_words_only(text: str, count: int) -> None:
    assert len(structure.BANNED.findall(text)) == count


SAMPLE = """
class Large:
    def __init__(self):
        {large}

@dataclass
class Data:
    def __init__(self):
        {large}

def short(self, a, b, c, d, *, e): ...
def long(self, a, b, c, d, e): ...
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "src" / "tianzhou" / "sample.py"
    path.parent.mkdir(parents=True)
    large = "; ".join(f"self.a{number} = 0" for number in range(13))
    path.write_text(SAMPLE.format(large=large))
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    monkeypatch.setattr(structure, "modules", lambda: (path,))
    return path


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (structure.long_signatures, ["long has 5"]),
        (structure.large_classes, ["Large has 13"]),
    ],
)
def test_ratchet_measures_detect_planted_cases(
    measure: Callable[[], Iterable[structure.Place]], expected: list[str]
) -> None:
    assert [place.text for place in measure()] == expected
