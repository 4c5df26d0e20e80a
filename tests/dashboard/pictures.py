"""Takes the pictures of docs/dashboard.md: a broker with a little of everything, and a browser.

PYTHONPATH=tests python -m dashboard.pictures            a minute
PYTHONPATH=tests python -m dashboard.pictures SECONDS    messages flow for so long before: the chart
                                                         shows up to ten minutes of them
"""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from abuse.raw_client import RawClient, send_v2
from dashboard.conftest import CHROMIUM
from dashboard.copies_world import master_and_slaves, raft_group
from dashboard.site import Site
from dashboard.world import connected, fill, order, pull
from docs.pages import ROOT
from e2e.admin_world import commit

SCREEN: Final = (1280, 800)
PHONE: Final = (390, 844)
LOW: Final = (1280, 620)
SETTLE_S: Final = 4.0


def traffic(site: Site, stop: threading.Event) -> None:
    """Orders come in; shipping keeps up, an archive follows."""
    with RawClient(site.mq.broker) as client:
        number = 100
        while not stop.wait(0.2):
            for _ in range(20):
                unique = f"UNIQ_KEY\x01{number:032X}\x02"
                fields = send_v2("orders", queue_id=number % 4, properties=unique)
                client.ask(310, fields, order(number))
                number += 1
            end = 10 + (number - 100) // 4
            for queue_id in range(4):
                pull(client, "shipping", "orders", queue_id, end - 5)
                commit(site.mq, "shipping", "orders", queue_id=queue_id, offset=end - 1)
                commit(
                    site.mq, "order-archive", "orders", queue_id=queue_id, offset=max(end - 60, 0)
                )


def take_all(site: Site) -> None:
    message = site.mq.stored("orders")[3]
    take(
        site.url,
        ("overview", "/", "light", SCREEN),
        ("overview-dark", "/", "dark", SCREEN),
        ("phone", "/", "dark", PHONE),
        ("group", "/groups/billing", "light", SCREEN),
        ("message", f"/messages/orders/{message.offset_id}", "dark", SCREEN),
        ("reset", "/groups/shipping/reset?topic=orders&where=earliest", "light", SCREEN),
    )


def take_copies() -> None:
    """A master with a slave that is behind, and a Raft group without one of its members."""
    with tempfile.TemporaryDirectory() as made, master_and_slaves(Path(made)) as group:
        group.send(300)
        group.servers[1].pause()
        group.send(60)
        time.sleep(SETTLE_S)
        take(group.url, ("replication", "/brokers/broker-a", "light", LOW))
        group.servers[1].resume()
    with tempfile.TemporaryDirectory() as made, raft_group(Path(made)) as (group, pids):
        group.send(300)
        os.kill(pids["n2"], signal.SIGKILL)
        group.send(100)
        time.sleep(SETTLE_S)
        take(group.url, ("raft", "/brokers/broker-a", "dark", LOW))


def take(url: str, *pictures: tuple[str, str, str, tuple[int, int]]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for name, path, scheme, (width, height) in pictures:
            page = browser.new_page(
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": width, "height": height},
            )
            page.goto(url + path)
            target = ROOT / "docs" / "pictures" / f"{name}.png"
            page.screenshot(path=target, full_page=width == PHONE[0])
            sys.stdout.write(f"wrote {target.relative_to(ROOT)}\n")
            page.close()
        browser.close()


def main() -> None:
    flow_s = float(sys.argv[1]) if len(sys.argv) > 1 else 45.0
    stop = threading.Event()
    with Site() as site:
        fill(site.mq)
        flowing = threading.Thread(target=traffic, args=(site, stop))
        flowing.start()
        try:
            time.sleep(flow_s)
            with connected(site):
                take_all(site)
        finally:
            stop.set()
            flowing.join()
    take_copies()


if __name__ == "__main__":
    main()
