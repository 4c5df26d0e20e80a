"""The C++ consumer under load, for the benchmark: prints its rate as one JSON line.

    consume_load.py NAMESERVER GROUP TOPIC COUNT THREADS

It receives COUNT messages and checks each body. The rate is measured from the first to the last of
them; a body that is a number is the time at which it was sent, in nanoseconds.
"""

import json
import resource
import sys
import threading
import time

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.ffi import dll


def main(nameserver, group, topic, count, threads):
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(nameserver)
    consumer.set_thread_count(int(threads))
    count, lock, done = int(count), threading.Lock(), threading.Event()
    latencies, seen = [], []

    def on_message(_, handle):
        body = RecvMessage(handle).body
        now = time.perf_counter()
        if body[:1] != b"x":
            latencies.append(time.time_ns() - int(body))
        with lock:
            seen.append(now)
            if len(seen) == 1:
                usage.append(resource.getrusage(resource.RUSAGE_SELF))
            if len(seen) == count:
                usage.append(resource.getrusage(resource.RUSAGE_SELF))
                done.set()
        return 0

    usage = []
    # The package's own subscribe() passes an exception through to C, where it counts as success.
    dll.Subscribe(consumer._handle, topic.encode(), b"*")
    consumer._register_callback(on_message)
    consumer.start()
    print(json.dumps({"ready": True}), flush=True)
    if not done.wait(120):
        sys.exit(f"{len(seen)} of {count} messages came")
    first, last = usage
    cpu = last.ru_utime + last.ru_stime - first.ru_utime - first.ru_stime
    facts = {
        "rate": (count - 1) / (seen[-1] - seen[0]),
        "cpu_us": cpu / count * 1e6,
        "latencies": sorted(latencies),
    }
    print(json.dumps(facts), flush=True)
    consumer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
