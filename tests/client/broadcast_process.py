"""A broadcasting consumer as a process of its own, for tests that kill it.

    python broadcast_process.py NAMESERVER asyncio|blocking [INSTANCE_NAME]

It writes what it receives, and commits often.
"""

import asyncio
import sys

from tianzhou.client import ClientOptions, ConsumerOptions, PushConsumer, sync

OPTIONS = ConsumerOptions(broadcasting=True, commit_interval_s=0.05)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def consume(nameserver: str, client: ClientOptions) -> None:
    consumer = PushConsumer(
        "g", nameserver=nameserver, subscribe={"orders": "*"}, options=OPTIONS, client=client
    )
    async with consumer:
        tell("started")
        async for message in consumer:
            tell(f"got {message.body.decode()}")


def consume_blocking(nameserver: str, client: ClientOptions) -> None:
    consumer = sync.PushConsumer(
        "g", nameserver=nameserver, subscribe={"orders": "*"}, options=OPTIONS, client=client
    )
    with consumer:
        tell("started")
        for message in consumer:
            tell(f"got {message.body.decode()}")


if __name__ == "__main__":
    nameserver, kind, *names = sys.argv[1:]
    client = ClientOptions(instance_name="".join(names))
    if kind == "asyncio":
        asyncio.run(consume(nameserver, client))
    else:
        consume_blocking(nameserver, client)
