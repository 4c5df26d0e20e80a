"""One browser and one broker for all tests of a module: both take longer to start than to use."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dashboard.site import Site
from dashboard.world import living

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 15_000


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made, living(made):
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(
            f"there is no {CHROMIUM}: pages were not looked at (Debian: apt install chromium)"
        )
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            # Nothing from outside is shown, and without it chromium refuses to run as root.
            args=["--no-sandbox"],
        )
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Generator[Page]:
    """A tab; whatever the browser complains about fails the test."""
    context = browser.new_context(
        base_url=site.url, viewport={"width": 1280, "height": 800}, timezone_id="Asia/Shanghai"
    )
    context.set_default_timeout(PATIENCE_MS)
    made = context.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    yield made
    context.close()
    assert not [one for one in complaints if "status of 4" not in one], complaints
