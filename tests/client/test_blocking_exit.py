"""How programs with blocking clients end: nothing is said, nothing is waited for, nothing is lost.

Each is a process of its own, in Python's development mode, which warns of everything left open.
"""

import subprocess
import sys

import pytest

from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker

HEAD = """
import logging, os, signal, sys, threading
from tianzhou.client import ConsumerOptions, StartPosition
from tianzhou.client.sync import LitePullConsumer, Message, Producer, PushConsumer

logging.getLogger("asyncio").setLevel(logging.ERROR)  # a slow machine is no mistake
nameserver = sys.argv[1]
FIRST = ConsumerOptions(start_from=StartPosition.FIRST, stop_timeout_s=0.5)
"""

CLOSED = """
with Producer("makers", nameserver=nameserver) as producer:
    producer.send(Message("orders", b"more"))
with PushConsumer("g", nameserver=nameserver, subscribe={"orders": "*"}, options=FIRST) as consumer:
    for message in consumer:
        break
"""

INTERRUPTED = """
consumer = PushConsumer("g", nameserver=nameserver, subscribe={"orders": "*"}, options=FIRST)
consumer.listen(lambda message: None)
signal.signal(signal.SIGALRM, signal.default_int_handler)  # as somebody at the keyboard does
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    consumer.run()
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("it went on")
"""

STUCK = """
begun = threading.Event()

def never_return(message):
    begun.set()
    threading.Event().wait()

options = ConsumerOptions(start_from=StartPosition.FIRST, stop_timeout_s=0.5, orderly=ORDERLY)
consumer = PushConsumer("g", nameserver=nameserver, subscribe={"orders": "*"}, options=options)
consumer.listen(never_return)
with consumer:
    assert begun.wait(120)
"""

LEFT_OPEN = """
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # which says that it was not closed
producer = Producer("makers", nameserver=nameserver).start()
producer.send(Message("orders", b"more"))
consumer = PushConsumer("g", nameserver=nameserver, subscribe={"orders": "*"}, options=FIRST)
consumer.start()
"""


SIGNALLED = """
class TimeIsUp(Exception):
    'Of no kind that the library knows: workers of other libraries raise such in handlers.'

def raise_it(signum, frame):
    raise TimeIsUp

signal.signal(signal.SIGALRM, raise_it)
with (
    LitePullConsumer("g", nameserver=nameserver, subscribe={"later": "*"}, options=FIRST) as mine,
    Producer("makers", nameserver=nameserver) as producer,
):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        mine.poll(30)
    except TimeIsUp:
        pass
    # What nobody waits for any more takes no message.
    producer.send(Message("later", b"for the next poll"))
    assert [message.body for message in mine.poll(20)] == [b"for the next poll"]
"""

PROGRAMS = {
    "closed": CLOSED,
    "interrupted": INTERRUPTED,
    "stuck": STUCK.replace("ORDERLY", "False"),
    "stuck in order": STUCK.replace("ORDERLY", "True"),
    "left open": LEFT_OPEN,
    "signalled": SIGNALLED,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_blocking_client_program_exits_without_output(mq: RunningBroker, name: str) -> None:
    for topic in ("orders", "later"):
        mq.create_topic(topic, queues=1)
    with Producer("makers", nameserver=mq.nameserver) as producer:
        producer.send(Message("orders", b"one"))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", HEAD + PROGRAMS[name], mq.nameserver],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
