"""A pull consumer that reads a topic once, from the beginning to the end.

pull.py NAMESERVER GROUP TOPIC EXPRESSION
"""

import json
import sys

from rocketmq.client import PullConsumer


def main(nameserver, group, topic, expression):
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(nameserver)
    consumer.start()
    for message in consumer.pull(topic, expression):
        facts = {
            "event": "got",
            "body": message.body.decode(),
            "queue": message.queue_id,
            "offset": message.queue_offset,
        }
        print(json.dumps(facts), flush=True)
    consumer.shutdown()
    print(json.dumps({"event": "closed"}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
