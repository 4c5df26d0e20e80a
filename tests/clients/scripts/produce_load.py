"""The C++ producer under load, for the benchmark: prints its rate, one JSON line per shape.

    produce_load.py NAMESERVER TOPIC SHAPE...

A shape is `single:COUNT`, `threads:COUNT` (64 threads that each wait for their responses) or
`async:COUNT` (64 callbacks outstanding).
"""

import json
import os
import resource
import sys
import threading
import time

from rocketmq.client import Message, Producer

BODY = "x" * 128
IN_FLIGHT = 64


def message(topic):
    made = Message(topic)
    made.set_body(BODY)
    made.set_tags("tag")
    made.set_keys("key")
    return made


def single(producer, topic, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        producer.send_sync(message(topic))
        times.append(time.perf_counter() - start)
    times.sort()
    return {"p50": times[count // 2], "p99": times[count * 99 // 100]}


def threads(producer, topic, count):
    failed = []

    def work():
        left = count // IN_FLIGHT
        while left:
            try:
                producer.send_sync(message(topic))
                left -= 1
            except Exception as error:
                # When many threads start at once, some get "no route".
                failed.append(repr(error))

    workers = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"failed": failed}


def callbacks(producer, topic, count):
    room = threading.Semaphore(IN_FLIGHT)
    failed = []

    def on_error(error):
        failed.append(repr(error))
        room.release()

    for _ in range(count):
        room.acquire()
        producer.send_async(message(topic), lambda _: room.release(), on_error)
    for _ in range(IN_FLIGHT):
        room.acquire()
    return {"failed": failed}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(nameserver, topic, *shapes):
    producer = Producer("cpp-load")
    producer.set_namesrv_addr(nameserver)
    producer.start()
    for _ in range(200):
        producer.send_sync(message(topic))
    for shape in shapes:
        name, count = shape.split(":")
        run = {"single": single, "threads": threads, "async": callbacks}[name]
        cpu, start = cpu_seconds(), time.perf_counter()
        facts = run(producer, topic, int(count))
        seconds = time.perf_counter() - start
        facts["rate"] = int(count) / seconds
        facts["cpu_us"] = (cpu_seconds() - cpu) / int(count) * 1e6
        print(json.dumps({"shape": name, **facts}), flush=True)
    # Skip the shutdown: it takes seconds and tests nothing.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
