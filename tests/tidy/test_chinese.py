"""The Chinese pages use one word for one thing: RocketMQ's own, and those of the field."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import ROOT, documents, name_of

INSTEAD = {
    "回答": "响应",
    "消费组": "消费者组",
    "生产组": "生产者组",
    "您": "你",
    "偏移量": "位点",
    "延时": "延迟",
    "积压": "堆积",
    "活表": "实时更新的表",
}
"""Banned words, and what to write instead."""
PAGES = [path for path in documents() if path.name.endswith(".zh-CN.md")]
TRANSLATIONS = sorted((ROOT / "tools" / "zh").glob("*.toml"))


def banned_in(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall("|".join(INSTEAD), line):
            yield f"line {number}: write {INSTEAD[word]} instead of {word}"


@pytest.mark.parametrize("path", [*PAGES, *TRANSLATIONS], ids=name_of)
def test_chinese_pages_contain_no_banned_word(path: Path) -> None:
    assert not list(banned_in(path.read_text(encoding="utf-8")))


def test_chinese_check_reports_a_banned_word_with_its_line() -> None:
    text = "消费者组和响应\n等待回答的消费组"
    assert list(banned_in(text)) == [
        "line 2: write 响应 instead of 回答",
        "line 2: write 消费者组 instead of 消费组",
    ]


def test_chinese_check_finds_the_pages() -> None:
    """An empty list would pass."""
    assert len(PAGES) > 25
    assert len(TRANSLATIONS) == 2
