"""A C++ push consumer that prints what it receives, briefly, until standard input ends.

    chaos_consume.py NAMESERVER GROUP TOPIC

Times are from the monotonic clock.
"""

import json
import os
import sys
import time

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.ffi import dll


def main(nameserver, group, topic):
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(nameserver)

    def on_message(_, handle):
        message = RecvMessage(handle)
        facts = {
            "event": "got",
            "body": message.body.decode(),
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "at": time.monotonic(),
        }
        # One write per line, because several threads print.
        os.write(1, (json.dumps(facts) + "\n").encode())
        return 0

    # The package's own subscribe() passes an exception through to C, where it counts as success.
    dll.Subscribe(consumer._handle, topic.encode(), b"*")
    consumer._register_callback(on_message)
    consumer.start()
    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
