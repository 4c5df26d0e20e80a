"""What strangers write into messages and ids must be shown, and must do nothing. In a browser."""

import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.site import Site, ask
from dashboard.world import HOSTILE
from e2e.admin_world import commit, give_up, member, send, send_half

pytestmark = pytest.mark.slow

CORPUS = (
    HOSTILE,
    "</pre><script>window.pwned=1</script>",
    "{{7331*7331}}{% raw %}",
    "javascript:window.pwned=1",
    '" onmouseover="window.pwned=1',
    "\u202e\u2028window.pwned",
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made, member(made.mq, "readers", "hostile", HOSTILE):
        made.mq.create_topic("hostile", queues=1)
        for text in CORPUS:
            send(made.mq, "hostile", text.encode(), KEYS="found", TAGS=text, group=text, note=text)
        send(made.mq, "hostile", f'{{"x": "{CORPUS[1]}"}}'.encode(), KEYS="found")
        commit(made.mq, "readers", "hostile", offset=1)
        give_up(made.mq, "readers", "hostile")
        send_half(made.mq, "hostile", b"x", group=HOSTILE)
        yield made


def test_s41_untrusted_text_runs_on_no_page(page: Page, site: Site) -> None:
    paths = [
        "/",
        "/topics",
        "/topics/hostile",
        "/groups",
        "/groups/readers",
        "/dlq/readers",
        "/transactions",
        "/messages?topic=hostile&by=key&word=found",
        "/messages?topic=hostile&by=time",
        *(f"/messages/hostile/{m.offset_id}" for m in site.mq.stored("hostile")),
    ]
    for path in paths:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, page.inner_text("main")
        page.mouse.move(300, 300)
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("main script, main img, main [onmouseover]").count() == 0, path


def test_s41_untrusted_text_is_shown_literally(page: Page, site: Site) -> None:
    message = site.mq.stored("hostile")[0]
    page.goto(f"/messages/hostile/{message.offset_id}")
    expect(page.locator("#payload")).to_have_text(HOSTILE)
    assert HOSTILE in page.locator(".facts").nth(1).inner_text()
    page.goto("/groups/readers")
    expect(page.locator("#live-members tbody")).to_contain_text(HOSTILE)


def test_s41_search_text_is_escaped(page: Page) -> None:
    text = "".join(CORPUS)
    for path in (
        "/topics?like=",
        "/groups?like=",
        "/messages?topic=hostile&by=key&word=",
        "/trace?id=",
        "/?done=",
        "/nowhere/",
    ):
        page.goto(path + quote(text, safe=""))
        assert page.evaluate("window.pwned") is None
        assert page.locator("main script, main img").count() == 0
        assert str(7331 * 7331) not in page.inner_text("main")


def test_s44_export_of_untrusted_text_has_no_formulas(site: Site) -> None:
    send(site.mq, "hostile", b"=HYPERLINK(1)", KEYS="sheet", TAGS="=1+1")
    text = ask(site.port, "/messages.csv?topic=hostile&by=key&word=sheet").text
    assert "'=HYPERLINK(1)" in text
    assert "'=1+1" in text
    assert ",=" not in text


def test_s38_dashboard_never_connects_to_an_address_in_an_id(site: Site) -> None:
    """Only brokers of the route are queried, whatever address the id contains."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        forged = f"7F000001{port:08X}{0:016X}"
        answer = ask(site.port, f"/messages/hostile/{forged}")
        assert answer.status == 400
        assert "has no message" in answer.text
        assert ask(site.port, f"/messages?topic=hostile&by=id&word={forged}").status == 200
        with pytest.raises(TimeoutError):
            listener.accept()


def test_s41_body_is_an_attachment_and_never_a_page(site: Site) -> None:
    message = site.mq.stored("hostile")[1]
    answer = ask(site.port, f"/messages/hostile/{message.offset_id}/body")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_s40_browser_logs_in_and_out(browser: Browser) -> None:
    password = "abcdef-ghjkmn-pqrstu"
    with Site(password=password) as locked:
        context = browser.new_context(base_url=f"http://127.0.0.1:{locked.port}")
        page = context.new_page()
        page.goto("/topics")
        expect(page.locator("h1")).to_have_text("Log in")
        page.fill("input[name=password]", "wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the password.")
        page.fill("input[name=password]", password)
        page.keyboard.press("Enter")
        expect(page.locator(".figures")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("h1")).to_have_text("Log in")
        context.close()
