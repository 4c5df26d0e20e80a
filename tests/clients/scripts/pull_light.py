"""A pull consumer that reads a light queue, whose broker it knows from a topic.

pull_light.py NAMESERVER GROUP TOPIC LIGHT_QUEUE
"""

import ctypes
import json
import sys

from rocketmq.client import PullConsumer, RecvMessage, _to_bytes
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CMessageQueue, _CPullStatus, dll


def queue_of(consumer, topic):
    """One queue of a topic; the client then knows the address of its broker."""
    queues = ctypes.POINTER(_CMessageQueue)()
    count = ctypes.c_int()
    ffi_check(
        dll.FetchSubscriptionMessageQueues(
            consumer._handle, _to_bytes(topic), ctypes.pointer(queues), ctypes.pointer(count)
        )
    )
    return queues[0]


def main(nameserver, group, topic, light):
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(nameserver)
    consumer.start()
    queue = queue_of(consumer, topic)
    queue.topic, queue.queueId = _to_bytes(light), 0
    offset, status = 0, _CPullStatus.FOUND
    while status == _CPullStatus.FOUND:
        found = dll.Pull(consumer._handle, ctypes.pointer(queue), b"*", offset, 1)
        status, offset = found.pullStatus, found.nextBeginOffset
        for rank in range(int(found.size)):
            message = RecvMessage(found.msgFoundList[rank])
            facts = {"event": "got", "body": message.body.decode(), "topic": message.topic}
            print(json.dumps({**facts, "next": offset}), flush=True)
        dll.ReleasePullResult(found)
    print(json.dumps({"event": "closed"}), flush=True)
    consumer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
