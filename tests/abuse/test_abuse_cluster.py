"""Unsigned and wrongly ask_signed requests to a NameServer whose cluster has credentials."""

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from raw_client import RawClient, Response
from test_abuse_registration import EMPTY, IDENTITY

from cli.conftest import Said, run_command
from clients import server_process
from clients.server_process import ServerProcess
from clients.waiting import wait_until
from docs.pages import Page
from tianzhou.wire.signing import Credentials

NO_PERMISSION: Final = 16
OURS: Final = Credentials(access_key="cluster", secret_key="hush-hush")
PAIR: Final = '{"accessKey":"cluster","secretKey":"hush-hush"}'

UNTRUSTED: Final = {
    "bare": None,
    "other-secret": Credentials(access_key="cluster", secret_key="guessed"),
    "other-name": Credentials(access_key="stranger", secret_key="hush-hush"),
}
CLUSTER_BROKER: Final = {"brokerName": "broker-a", "clusterName": "DefaultCluster"}
CHANGES: Final[dict[str, tuple[int, dict[str, str], bytes]]] = {
    "register": (103, IDENTITY, EMPTY),
    "register-as-the-broker": (103, {**IDENTITY, **CLUSTER_BROKER}, EMPTY),
    "unregister": (104, {**IDENTITY, **CLUSTER_BROKER}, b""),
    "put": (100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "evil:1"}, b""),
    "delete": (102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "kept"}, b""),
    "wipe": (205, {"brokerName": "broker-a"}, b""),
    "add": (327, {"brokerName": "broker-a"}, b""),
    "delete-topic": (216, {"topic": "TBW102"}, b""),
    "register-topic": (217, {"topic": "Fresh"}, b'{"queueDatas":[]}'),
    "config": (318, {}, b"enableTopicList=false"),
    "data-version": (322, {**IDENTITY, **CLUSTER_BROKER}, b"{}"),
    "heartbeat": (904, {**IDENTITY, **CLUSTER_BROKER}, b""),
}


class Pair(NamedTuple):
    names: ServerProcess
    broker: ServerProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A NameServer and a broker with the same credentials in their settings."""
    home = tmp_path_factory.mktemp("cluster")
    settings = home / "cluster.conf"
    (line,) = Page("docs/nameserver.md").blocks("properties")
    settings.write_text(line.replace("…", "hush-hush"))
    assert settings.read_text() == f"innerClientAuthenticationCredentials={PAIR}\n"
    names = server_process.run(["nameserver", "-p", "0", "-c", str(settings)], home / "names")
    try:
        command = ["broker", "-n", names.nameserver, "-p", "0", "-c", str(settings)]
        command += ["--http-port", "0"]
        broker = server_process.run(command, home / "broker")
        try:
            with RawClient(names.nameserver) as client:
                kept = {"namespace": "ORDER_TOPIC_CONFIG", "key": "kept", "value": "broker-a:8"}
                assert ask_signed(client, 100, kept).code == 0
            yield Pair(names, broker)
        finally:
            broker.end()
    finally:
        names.end()


def ask_signed(
    client: RawClient,
    code: int,
    ext: dict[str, str],
    body: bytes = b"",
    credentials: Credentials | None = OURS,
) -> Response:
    return client.ask(code, ext if credentials is None else credentials.sign(ext, body), body)


def public_state(client: RawClient) -> list[tuple[int, bytes]]:
    """Everything that a NameServer tells any client, except the rejected registrations."""
    asked: list[tuple[int, dict[str, str]]] = [
        (105, {"topic": "TBW102"}),
        (106, {}),
        (206, {}),
        (319, {}),
        (219, {"namespace": "ORDER_TOPIC_CONFIG"}),
        (901, {"brokerName": "broker-a", "clusterName": "DefaultCluster"}),
    ]
    responses = [client.ask(code, ext) for code, ext in asked]
    return [(response.code, response.body) for response in responses]


@pytest.mark.parametrize("name", CHANGES)
def test_s31_change_without_the_cluster_signature_is_rejected(pair: Pair, name: str) -> None:
    code, ext, body = CHANGES[name]
    with RawClient(pair.names.nameserver) as client:
        before = public_state(client)
        assert [row[0] for row in before] == [0] * len(before)
        remarks: set[str] = set()
        for credentials in UNTRUSTED.values():
            response = ask_signed(client, code, ext, body, credentials)
            assert response.code == NO_PERMISSION, response
            remarks |= {response.remark}
        (remark,) = remarks  # the remark does not reveal how far a request got
        assert "cluster_credentials" in remark
        assert public_state(client) == before


def test_s31_signed_request_that_was_modified_is_rejected(pair: Pair) -> None:
    ext, body = OURS.sign(IDENTITY, EMPTY), EMPTY
    with RawClient(pair.names.nameserver) as client:
        assert client.ask(103, {**ext, "brokerAddr": "127.0.0.1:9"}, body).code == NO_PERMISSION
        assert client.ask(103, ext, body + b" ").code == NO_PERMISSION
        assert b"Forgers" not in client.ask(106).body
        assert client.ask(103, ext, body).code == 0
        assert b"Forgers" in client.ask(106).body
        assert ask_signed(client, 104, IDENTITY).code == 0


def test_s31_credentials_are_never_shown_or_logged(pair: Pair) -> None:
    with RawClient(pair.names.nameserver) as client, RawClient(pair.broker.broker) as other:
        for response in (ask_signed(client, 319, {}), other.ask(26)):
            assert response.code == 0
            assert b"innerClientAuthenticationCredentials=******" in response.body
            assert b"hush" not in response.body
    for server in pair:
        assert "hush" not in server.log()


def tianzhou(*words: str, credentials: str = "") -> Said:
    """Run a command with these credentials in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIANZHOU_CREDENTIALS", credentials)
        return run_command(*words)


def topics(pair: Pair) -> list[str]:
    with RawClient(pair.names.nameserver) as client:
        return json.loads(client.ask(206).body)["topicList"]


def test_s31_commands_sign_with_credentials_of_the_environment(pair: Pair) -> None:
    at = ("-n", pair.names.nameserver)
    assert tianzhou("topic", "create", "Short", *at).code == 0
    refused = tianzhou("topic", "delete", "Short", "--yes", *at)
    assert refused.code == 5
    assert "TIANZHOU_CREDENTIALS" in refused.err
    assert "Short" in topics(pair)  # its route remains
    done = tianzhou("topic", "delete", "Short", "--yes", *at, credentials=PAIR)
    assert done.code == 0, done.err
    assert "Short" not in topics(pair)
    drained = tianzhou("broker", "drain", "--timeout", "20", *at)
    assert drained.code == 0, drained.err  # the broker itself sends and signs this request
    assert tianzhou("broker", "drain", "--undo", *at).code == 0
    odd = tianzhou("topic", "list", *at, credentials="hush-hush")
    assert odd.code == 2
    assert "TIANZHOU_CREDENTIALS: credentials are written" in odd.err
    assert "hush" not in odd.err


def test_s31_dashboard_signs_with_the_credentials_of_its_broker(pair: Pair) -> None:
    at = ("-n", pair.names.nameserver)
    assert tianzhou("topic", "create", "Shown", *at).code == 0
    assert "Shown" in topics(pair)
    page = f"{pair.broker.facts['http']}/topics/Shown/delete"
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    found = re.search(r'name="token" value="([^"]+)"', browser.open(page).read().decode())
    assert found is not None
    form = urllib.parse.urlencode({"token": found[1], "typed": "Shown"}).encode()
    origin = {"Origin": pair.broker.facts["http"]}
    text = browser.open(urllib.request.Request(page, form, origin)).read().decode()
    assert "Topic Shown is deleted." in text
    assert "Shown" not in topics(pair)


def test_s31_doctor_reports_a_broker_whose_registration_is_rejected(
    pair: Pair, tmp_path: Path
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(
        'brokerName=left-out\ncluster_credentials={"accessKey":"x","secretKey":"y"}'
    )
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                server_process.TIANZHOU,
                "broker",
                "-n",
                pair.names.nameserver,
                "-p",
                "0",
                "-c",
                str(settings),
                "--data",
                str(tmp_path / "data"),
                "--no-http",
                "--ready-file",
                str(ready),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(
            lambda: "registration.failed" in log.read_text(),
            within_s=30,
            what="the failed registration is logged",
        )
        assert "cluster_credentials" in log.read_text()
        doctor = tianzhou("doctor", "-n", pair.names.nameserver, "--observe", "0", "--json")
        assert doctor.code == 6, doctor.err
        (row,) = [
            row for row in json.loads(doctor.out)["findings"] if row["about"] == "broker left-out"
        ]
        assert row["level"] == "problem"
        assert "it is signed by 'x', not by the cluster" in row["said"]
        assert "innerClientAuthenticationCredentials" in row["fix"]
    finally:
        process.terminate()
        assert process.wait(300) == 0


@pytest.mark.parametrize(
    ("environment", "names_it"), [({}, True), ({"TIANZHOU_CREDENTIALS": PAIR}, False)]
)
def test_s31_start_without_credentials_warns_about_exposure(
    tmp_path: Path, environment: dict[str, str], names_it: bool
) -> None:
    log, ready = tmp_path / "log", tmp_path / "ready.json"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                server_process.TIANZHOU,
                "up",
                "--host",
                "0.0.0.0",
                "--ephemeral",
                "--no-http",
                "--nameserver-port",
                "0",
                "--broker-port",
                "0",
                "--ready-file",
                str(ready),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | environment,
        )
    try:
        wait_until(ready.exists, within_s=30, what="the server is ready")
        (line,) = [row for row in log.read_text().splitlines() if "is reachable from" in row]
        assert ("register a broker and attract clients to it" in line) is names_it
        port = json.loads(ready.read_text())["nameserver"].rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as client:
            assert b"broker-a" in client.ask(106).body  # its own broker signs
            assert client.ask(103, IDENTITY, EMPTY).code == (0 if names_it else NO_PERMISSION)
    finally:
        process.terminate()
        assert process.wait(300) == 0
