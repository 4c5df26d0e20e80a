"""Frames that hypothesis makes up, random and mutated from real ones, in random pieces.

Whatever comes, each connection gets an answer or is closed, nobody else notices, and nothing stays.
"""

import json
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import Live, running, wait_for
from raw_client import HungUp, RawClient, frame, heartbeat_of, pull_of, request, send_v1, send_v2

SAMPLES: Final = Path(__file__).parents[1] / "golden" / "samples"
ANSWER_S: Final = 5.0
SWALLOWED_S: Final = 0.2
"""Silence for so long means that the last frame is not whole and has swallowed the question."""
EXAMPLES: Final = 20_000 if os.environ.get("TIANZHOU_TORTURE") else 1_000
# The broker must be asked for nothing that takes it down on purpose, or fills the disk.
PROBE: Final = 31_999
LIVES: Final = 3
"""How often a broker is fuzzed and killed."""
KEPT: Final = 20
KEPT_TOPIC: Final = "PollCache"
KEPT_BODY: Final = re.compile(rb"kept \d+ of life \d+;")


def captured() -> list[bytes]:
    """Requests that real clients sent."""
    found: list[bytes] = []
    for path in sorted(SAMPLES.glob("frames-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["dir"] == "C>S":
                body = str(row.get("body", "")).encode("utf-8", "surrogateescape")
                found.append(frame(json.dumps(row["h"]).encode(), body))
    assert found, f"no captured frames in {SAMPLES}"
    return found[:: max(1, len(found) // 60)]


def made() -> list[bytes]:
    return [
        data
        for binary in (False, True)
        for _, data in (
            request(310, send_v2("Fuzz"), b"x", binary=binary),
            request(10, send_v1("Fuzz"), b"x", binary=binary),
            request(11, pull_of("Fuzz", suspendTimeoutMillis="10"), binary=binary),
            request(34, {}, heartbeat_of(producers=("fuzz",), consumers=("fuzz",)), binary=binary),
            request(105, {"topic": "Fuzz"}, binary=binary),
            request(PROBE, {"a": "b"}, binary=binary),
        )
    ]


SEEDS: Final = captured() + made()
SIGNS: Final = [
    b"\x00",
    b"\xff",
    b"{",
    b'"',
    b"\\",
    b"9" * 30,
    b"\x7f\xff\xff\xff",
    b"\x80",
    b":-1",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "insert", "double"))):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "insert":
                data[at:at] = draw(st.sampled_from(SIGNS))
            case _:
                data += data[at : at + 200]
    if draw(st.booleans()) and len(data) > 8:
        struct.pack_into(">i", data, 0, len(data) - 4)  # sound outside, so that more is looked at
    return bytes(data)


STREAMS: Final = st.lists(
    mutated() | st.binary(max_size=200) | st.binary(min_size=1, max_size=300).map(frame)
    | st.sampled_from(SEEDS),
    min_size=1, max_size=5,
).map(b"".join)  # fmt: skip


def speak(client: RawClient, data: bytes, cuts: list[int]) -> None:
    at = 0
    for size in cuts:
        client.send(data[at : at + size])
        at += size
    client.send(data[at:])


def is_settled(client: RawClient) -> bool:
    """Whether the connection ends, or still answers a question, in time."""
    opaque, probe = request(PROBE)
    client.send(probe)
    deadline = time.monotonic() + SWALLOWED_S
    try:
        while time.monotonic() < deadline:
            answer = client.receive(deadline - time.monotonic())
            if answer.header.opaque == opaque and answer.code == 3:
                return True
    except HungUp:
        return True
    except TimeoutError:
        pass
    # It could also be a slow answer; either way the connection must end now.
    client.socket.shutdown(1)
    return client.ends(ANSWER_S)


@pytest.mark.slow
@pytest.mark.parametrize("port", ["broker", "nameserver"])
def test_streams_of_made_up_frames(live: Live, port: str) -> None:
    address = live.broker if port == "broker" else live.nameserver

    @settings(
        max_examples=EXAMPLES, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(data=STREAMS, cuts=st.lists(st.integers(1, 60), max_size=4))
    def fuzz(data: bytes, cuts: list[int]) -> None:
        with RawClient(address) as client:
            speak(client, data, cuts)
            assert is_settled(client)

    fuzz()  # whatever is cached by the first examples is there now
    memory, files = live.rss_bytes(), live.fd_count()
    fuzz()
    assert live.rss_bytes() - memory < 32 * 2**20
    wait_for(lambda: live.fd_count() <= files + 4)


@pytest.mark.slow
def test_streams_of_made_up_frames_survive_a_kill(tmp_path: Path) -> None:
    """A slice of fuzzing, kill -9, a restart that serves, and `store verify` of the directory."""
    data = tmp_path / "data"
    options = ("--data", str(data), "--no-http")
    sent: list[bytes] = []
    for life in range(LIVES):
        place = tmp_path / f"life-{life}"
        place.mkdir()
        with running(place, *options, ephemeral=False) as live:
            with live.to_broker() as client:
                assert bodies_of(client, len(sent)) == sent, "what was acknowledged is there"
            fuzz_a_slice(live.broker)
            with live.to_broker() as client:
                for number in range(KEPT):
                    body = b"kept %d of life %d;" % (number, life)
                    assert client.ask(310, send_v2(KEPT_TOPIC, queue_id=0), body).code == 0
                    sent.append(body)
            live.process.kill()
            live.process.wait()
        verify = [sys.executable, "-m", "tianzhou", "store", "verify", str(store_of(data))]
        found = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=60)
        assert found.returncode == 0, found.stdout + found.stderr
    with running(tmp_path, *options, ephemeral=False) as live, live.to_broker() as client:
        assert bodies_of(client, len(sent)) == sent, "the last kill is followed by a start, too"


def fuzz_a_slice(address: str) -> None:
    @settings(
        max_examples=EXAMPLES // 5, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(data=STREAMS, cuts=st.lists(st.integers(1, 60), max_size=4))
    def fuzz(data: bytes, cuts: list[int]) -> None:
        with RawClient(address) as client:
            speak(client, data, cuts)
            assert is_settled(client)

    fuzz()


def bodies_of(client: RawClient, count: int) -> list[bytes]:
    """Bodies of the messages that were sent on purpose, in order."""
    found: list[bytes] = []
    while len(found) < count:
        answer = client.ask(11, pull_of(KEPT_TOPIC, offset=len(found)))
        assert answer.code == 0, answer.header
        found += KEPT_BODY.findall(answer.body)
    return found


def store_of(data: Path) -> Path:
    """The directory of the broker's store."""
    (log,) = data.rglob("commitlog")
    return log.parent


@pytest.mark.slow
def test_many_at_once_leave_nothing(live: Live) -> None:
    """Half of a frame on each of many connections, then all of them gone at once."""
    files = live.fd_count()
    for round_number in range(5):
        clients = [live.to_broker() for _ in range(100)]
        for number, client in enumerate(clients):
            data = SEEDS[(round_number * 100 + number) % len(SEEDS)]
            client.send(data * 3 + data[: 1 + number % len(data)])
        for client in clients:
            client.socket.close()
    wait_for(lambda: live.fd_count() <= files + 2)
