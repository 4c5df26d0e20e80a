"""A C++ producer that sends numbered messages until standard input ends, and prints the start time
and the outcome of each send.

    chaos_produce.py NAMESERVER TOPIC CLIENT PER_SECOND

Times are from the monotonic clock. Bodies are those of tianzhou.testing.chaos.values.
"""

import itertools
import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer

FILLER_MAX = 200


def say(**facts):
    print(json.dumps(facts), flush=True)


def send(producer, topic, value, serial):
    message = Message(topic)
    message.set_body(f"{value} {'x' * (serial * 31 % FILLER_MAX)}")
    try:
        result = producer.send_sync(message)
    except Exception as error:
        return {"status": "", "error": repr(error)}
    return {"status": result.status.name, "offset": result.offset}


def main(nameserver, topic, client, per_second):
    producer = Producer("chaos-cpp-producers")
    producer.set_namesrv_addr(nameserver)
    producer.start()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    for serial in itertools.count():
        value, began = f"{client}-{serial}", time.monotonic()
        say(event="began", value=value, at=began)
        facts = send(producer, topic, value, serial)
        say(event="ended", value=value, at=time.monotonic(), **facts)
        if over.wait(max(0.0, began + 1 / float(per_second) - time.monotonic())):
            break
    say(event="closed")
    # Skip the shutdown: it takes seconds and tests nothing.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
