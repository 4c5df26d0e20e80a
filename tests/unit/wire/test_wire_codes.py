"""The generated tables of codes, and the generator: `spec/`, `tools/gen_wire.py`."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tianzhou.wire import _generated_codes as codes
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers import REQUEST_HEADERS, RESPONSE_HEADERS

ROOT = Path(__file__).resolve().parents[3]


def test_codes_have_the_numbers_of_rocketmq() -> None:
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert RequestCode.BATCH_ACK_MESSAGE == 200151
    assert ResponseCode.TOPIC_NOT_EXIST == 17
    assert ResponseCode.RPC_TIME_OUT == -1006


def test_every_response_code_has_a_sentence_and_a_remedy() -> None:
    rows = tomllib.loads((ROOT / "spec" / "errors.toml").read_text(encoding="utf-8"))["response"]
    assert {row["code"] for row in rows} == set(ResponseCode)
    for row in rows:
        assert row["sentence"].endswith(".")
        assert row["remedy"].endswith(".")


def test_every_request_code_has_a_server_or_is_unused() -> None:
    placed = (
        codes.SERVED_BY_NAMESERVER
        | codes.SERVED_BY_BROKER
        | codes.REJECTED_BY_BROKER
        | codes.SERVED_BY_CLIENT
        | codes.SERVED_BY_CONTROLLER
    )
    unused = set(RequestCode) - placed
    assert unused == {13, 22, 23, 27, *range(209, 215)}
    assert (REQUEST_HEADERS.keys() | RESPONSE_HEADERS.keys()) <= placed


def test_codes_served_by_clients_are_as_listed() -> None:
    assert sorted(codes.SERVED_BY_CLIENT) == [39, 40, 220, 221, 307, 309, 326]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of the repository that the generator touches."""
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "gen_wire.py", tmp_path / "tools")
    wire = tmp_path / "src" / "tianzhou" / "wire"
    wire.mkdir(parents=True)
    for path in (ROOT / "src" / "tianzhou" / "wire").glob("_generated_*.py"):
        shutil.copy(path, wire)
    return tmp_path


def run(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(checkout / "tools" / "gen_wire.py"), *arguments],
        capture_output=True,
        text=True,
    )


def test_generated_files_are_fresh(checkout: Path) -> None:
    done = run(checkout, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_generator_repairs_stale_missing_and_leftover_files(checkout: Path) -> None:
    wire = checkout / "src" / "tianzhou" / "wire"
    stale, missing = wire / "_generated_codes.py", wire / "_generated_headers_pop.py"
    forgotten = wire / "_generated_old.py"
    stale.write_text(stale.read_text() + "# edited\n")
    missing.unlink()
    forgotten.write_text("")
    done = run(checkout, "--check")
    assert done.returncode == 1
    for path in (stale, missing, forgotten):
        assert f"{path.name} is stale" in done.stderr
    assert run(checkout).returncode == 0
    assert run(checkout, "--check").returncode == 0
    assert not forgotten.exists()


def test_generator_rejects_a_code_that_occurs_twice(checkout: Path) -> None:
    path = checkout / "spec" / "requests.toml"
    path.write_text(path.read_text().replace("code = 11,", "code = 10,"))
    done = run(checkout)
    assert done.returncode != 0
    assert "request code 10 occurs twice" in done.stderr


def test_generator_rejects_a_request_both_served_and_rejected(checkout: Path) -> None:
    path = checkout / "spec" / "requests.toml"
    rejected = 'rejected_by = ["broker"]'
    path.write_text(path.read_text().replace(rejected, f'served_by = ["broker"], {rejected}', 1))
    done = run(checkout)
    assert done.returncode != 0
    assert "'broker' occurs twice" in done.stderr


def test_generator_rejects_a_broker_request_without_an_effect(checkout: Path) -> None:
    path = checkout / "spec" / "requests.toml"
    path.write_text(path.read_text().replace(', effect = "tables"', "", 1))
    done = run(checkout)
    assert done.returncode != 0
    assert "a request that a broker serves must have one of none, session" in done.stderr
