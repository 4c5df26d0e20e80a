"""Sends the messages described by the lines of standard input, and prints the results.

    produce.py NAMESERVER GROUP

A line is a JSON object: `how` is sync, oneway, async, orderly or batch; `topic`, `body` (`bodies`
for a batch), and perhaps `tags`, `keys`, `delay`, `shard`, `properties`. Each yields one
line of output once it has been sent.
"""

import json
import sys
import threading
import time

from rocketmq.client import Message, Producer

CONNECT_S = 3.0
"""How long the library waits for a connection; it waits 5 s for the response of a NameServer."""
RETRY_S = 0.02


def say(**facts):
    print(json.dumps(facts), flush=True)


def message_of(wish, body):
    message = Message(wish["topic"])
    message.set_body(body)
    if "tags" in wish:
        message.set_tags(wish["tags"])
    if "keys" in wish:
        message.set_keys(wish["keys"])
    if "delay" in wish:
        message.set_delay_time_level(wish["delay"])
    for name, value in wish.get("properties", {}).items():
        message.set_property(name, value)
    return message


def facts_of(result):
    return {"status": result.status.name, "id": result.msg_id, "offset": result.offset}


def send_async(producer, message):
    answered = threading.Event()
    facts = {}

    def keep(**more):
        facts.update(more)
        answered.set()

    producer.send_async(
        message,
        lambda result: keep(**facts_of(result)),
        lambda error: keep(error=str(error)),
    )
    if not answered.wait(60):
        facts["error"] = "no callback came"
    return facts


def carry_out(producer, wish):
    how = wish["how"]
    if how == "batch":
        return facts_of(producer.send_batch([message_of(wish, body) for body in wish["bodies"]]))
    message = message_of(wish, wish["body"])
    if how == "sync":
        return facts_of(producer.send_sync(message))
    if how == "orderly":
        return facts_of(producer.send_orderly(message, wish["shard"]))
    if how == "async":
        return send_async(producer, message)
    assert how == "oneway", how
    producer.send_oneway(message)
    return {"status": "SENT"}


def send_routed(producer, wish):
    """Send again if the library reported "No route info" although it has a route, and sent nothing.

    It says so in two more cases: its own threads needed more than `CONNECT_S` to notice that it is
    connected, as on a busy machine, or one of them is just connecting to the broker, for a
    heartbeat: then all tries fail at once. That connection is there, or has failed, within
    `CONNECT_S`; a report after that is an error.
    """
    first_s = time.monotonic()
    while True:
        start_s = time.monotonic()
        try:
            return carry_out(producer, wish)
        except Exception as error:
            now_s = time.monotonic()
            is_slow, is_new = now_s - start_s >= CONNECT_S, now_s - first_s < CONNECT_S
            if "No route info" not in str(error) or not (is_slow or is_new):
                raise
            time.sleep(RETRY_S)


def main(nameserver, group):
    # The default maximum of the library is 128 KiB.
    producer = Producer(group, max_message_size=4 * 1024 * 1024)
    producer.set_namesrv_addr(nameserver)
    producer.start()
    say(event="ready")
    for line in sys.stdin:
        try:
            say(event="done", **send_routed(producer, json.loads(line)))
        except Exception as error:
            say(event="done", error=repr(error))
    producer.shutdown()
    say(event="closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
