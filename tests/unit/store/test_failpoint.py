import re
from pathlib import Path

import pytest

import tianzhou.store
from tianzhou.store import failpoint


def test_failpoint_acts_until_it_is_disarmed() -> None:
    hits: list[str] = []
    failpoint.arm("log.before_append", lambda: hits.append("now"))
    failpoint.failpoint("log.before_append")
    failpoint.failpoint("log.after_append")
    failpoint.disarm()
    failpoint.failpoint("log.before_append")
    assert hits == ["now"]


def test_failpoint_with_an_unknown_name_is_rejected() -> None:
    with pytest.raises(AssertionError, match="is not a fail point"):
        failpoint.arm("log.befor_append", lambda: None)


def test_failpoint_list_matches_the_code() -> None:
    sources = Path(tianzhou.store.__file__).parent.glob("*.py")
    used = re.findall(r'\bfailpoint\("([^"]+)"\)', "".join(p.read_text() for p in sources))
    assert set(used) == set(failpoint.POINTS)
