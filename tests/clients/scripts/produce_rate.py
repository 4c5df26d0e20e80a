"""Sends at a fixed rate with blocking sends, and prints a JSON line with the outcome of each.

produce_rate.py NAMESERVER TOPIC RATE SECONDS
"""

import json
import sys
import threading
import time

from rocketmq.client import Message, Producer

WORKERS = 64


def main(nameserver, topic, rate, seconds):
    producer = Producer("rate")
    producer.set_namesrv_addr(nameserver)
    producer.start()
    warm = Message(topic)
    warm.set_body("warm")
    for _ in range(100):
        try:
            producer.send_sync(warm)
            break
        except Exception:  # no route yet
            time.sleep(0.1)
    count, results = int(rate * seconds), []
    begun = time.monotonic()

    def work(rank):
        for number in range(rank, count, WORKERS):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            message = Message(topic)
            message.set_body(f"c{number}")
            start = time.monotonic()
            try:
                is_sent = producer.send_sync(message).status.name == "OK"
            except Exception:
                is_sent = False
            results.append([f"c{number}", is_sent, time.monotonic() - start])

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    print(json.dumps({"begun": True}), flush=True)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"sends": results}), flush=True)
    producer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
