import re
from pathlib import Path

import pytest

import tianzhou.store
from tianzhou.store import failpoint


def test_an_armed_point_acts_until_it_is_disarmed() -> None:
    hits: list[str] = []
    failpoint.arm("log.before_append", lambda: hits.append("now"))
    failpoint.failpoint("log.before_append")
    failpoint.failpoint("log.after_append")
    failpoint.disarm()
    failpoint.failpoint("log.before_append")
    assert hits == ["now"]


def test_only_points_that_exist_can_be_armed() -> None:
    with pytest.raises(AssertionError, match="is not a fail point"):
        failpoint.arm("log.befor_append", lambda: None)


def test_the_list_of_points_is_what_the_code_has() -> None:
    sources = Path(tianzhou.store.__file__).parent.glob("*.py")
    used = re.findall(r'\bfailpoint\("([^"]+)"\)', "".join(p.read_text() for p in sources))
    assert set(used) == set(failpoint.POINTS)
