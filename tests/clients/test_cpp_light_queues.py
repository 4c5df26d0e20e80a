"""RocketMQ's C++ client sends to light queues and pulls from them."""

from clients.cpp_client import Clients
from clients.server_process import ServerProcess
from tianzhou.client.sync import Admin

A, B = "%LMQ%cpp-a", "%LMQ%cpp-b"


def test_cpp_client_uses_light_queues(clients: Clients, server: ServerProcess) -> None:
    with Admin(nameserver=server.nameserver) as admin:
        settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
        admin.brokers.configure("broker-a", settings)
    producer = clients.producer()
    producer.send("sync", "cpp-light", "one", properties={"INNER_MULTI_DISPATCH": A})
    producer.send("sync", "cpp-light", "both", properties={"INNER_MULTI_DISPATCH": f"{A},{B}"})
    producer.send("sync", "cpp-light", "none")
    rows = clients.pull_light("cpp-light-readers", "cpp-light", A)
    assert [(row["body"], row["topic"], row["next"]) for row in rows] == [
        ("one", "cpp-light", 1),
        ("both", "cpp-light", 2),
    ]
    rows = clients.pull_light("cpp-light-readers", "cpp-light", B)
    assert [row["body"] for row in rows] == ["both"]
