"""docs/compat.md is what the tables of handlers say, and no request code is forgotten."""

import importlib.util
import subprocess
import sys
from types import ModuleType

from sources import ROOT

from tianzhou.broker.rejections import REFUSED
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import REJECTED_BY_BROKER, SERVED_BY_BROKER, RequestCode


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_compat", ROOT / "tools" / "gen_compat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compat_page_is_up_to_date() -> None:
    asked = subprocess.run(
        [sys.executable, "tools/gen_compat.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stderr


def test_every_request_code_is_served_or_rejected_with_a_reason() -> None:
    module = tool()
    assert module.unaccounted(module.codes()) == []
    assert all(len(reason) > 20 for reason in REFUSED.values())


def test_rejection_table_lists_the_requests_that_brokers_reject() -> None:
    assert set(REFUSED) == REJECTED_BY_BROKER
    assert not REJECTED_BY_BROKER & SERVED_BY_BROKER


def test_every_handler_of_a_broker_is_for_a_request_to_brokers() -> None:
    codes = {RequestCode(code) for code in SmallBroker().requests.router.codes}
    assert codes <= SERVED_BY_BROKER | REJECTED_BY_BROKER


def test_compat_notes_refer_to_existing_codes() -> None:
    module = tool()
    assert set(module.NOTES) <= {code.number for code in module.codes()}
