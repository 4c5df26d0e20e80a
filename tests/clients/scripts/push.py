"""A push consumer that prints what it receives, until standard input ends.

    push.py NAMESERVER GROUP TOPIC EXPRESSION MODEL FAILURES

MODEL is concurrent, orderly or broadcast. The first FAILURES deliveries of every message fail.
"""

import hashlib
import json
import sys
import threading
import time
from collections import Counter

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.ffi import MessageModel, _CConsumeStatus, dll

LOCK = threading.Lock()
SEEN = Counter()


def say(**facts):
    with LOCK:
        print(json.dumps(facts), flush=True)


def text(value):
    return value.decode("utf-8", "backslashreplace") if value is not None else None


def facts_of(message):
    body = message.body
    return {
        "body": text(body[:200]),
        "size": len(body),
        "sha": hashlib.sha256(body).hexdigest(),
        "topic": message.topic,
        "tags": text(message.tags),
        "keys": text(message.keys),
        "id": message.id,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "reconsumed": message.reconsume_times,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "colour": text(message.get_property("colour")),
        "got_ms": int(time.time() * 1000),
    }


def main(nameserver, group, topic, expression, model, failures):
    broadcast = model == "broadcast"
    consumer = PushConsumer(
        group,
        orderly=model == "orderly",
        message_model=MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING,
    )
    consumer.set_namesrv_addr(nameserver)
    if model == "orderly":
        consumer.set_thread_count(4)

    def on_message(_, handle):
        facts = facts_of(RecvMessage(handle))
        with LOCK:
            SEEN[facts["sha"]] += 1
            fails = SEEN[facts["sha"]] <= int(failures)
        say(event="got", failed=fails, **facts)
        wanted = _CConsumeStatus.RECONSUME_LATER if fails else _CConsumeStatus.CONSUME_SUCCESS
        return wanted.value

    # The package's own subscribe() passes an exception through to C, where it counts as success.
    dll.Subscribe(consumer._handle, topic.encode(), expression.encode())
    consumer._register_callback(on_message)
    consumer.start()
    say(event="ready")
    sys.stdin.read()
    consumer.shutdown()
    say(event="closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
