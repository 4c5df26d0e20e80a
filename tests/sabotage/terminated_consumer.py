"""Two consumers in one process that gets SIGTERM, with a planted bug unless BUG is empty.

    python terminated_consumer.py NAMESERVER BUG

Prints `begun` and `finished` around each message, and `returned` when `run` of both returned.
"""

import asyncio
import sys
from contextlib import nullcontext

from client_bugs import TERMINATION
from planting import planted

from tianzhou.client import ConsumerOptions, PushConsumer, ReceivedMessage, StartPosition

WORK_S = 0.5


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def bill(message: ReceivedMessage) -> None:
    say("begun")
    await asyncio.sleep(WORK_S)
    say("finished")


async def consume(nameserver: str) -> None:
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    consumers = [
        PushConsumer(group, nameserver=nameserver, subscribe={"orders": "*"}, options=options)
        for group in ("billing", "stock")
    ]
    for consumer in consumers:
        consumer.listen(bill)
    await asyncio.gather(*(consumer.run() for consumer in consumers))
    say("returned")


if __name__ == "__main__":
    bugs = {bug.name: bug for bug in TERMINATION}
    with planted(bugs[sys.argv[2]]) if sys.argv[2] else nullcontext():
        asyncio.run(consume(sys.argv[1]))
