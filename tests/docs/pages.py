"""The documents as data: blocks of code, headings, links, first cells. One reader for all tests."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
NAMESERVER: Final = "127.0.0.1:9876"
"""Where documents say that the cluster is; tests have theirs elsewhere."""

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING: Final = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_NOT_IN_ANCHORS: Final = re.compile(r"[^\w\- ]")
_CHINESE: Final = ".zh-CN.md"


@dataclass(frozen=True, slots=True)
class Block:
    """Code between fences."""

    language: str
    code: str
    line: int


@dataclass(frozen=True)
class Page:
    """One document, by its path from the root of the repository."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def all_blocks(self) -> list[Block]:
        return [
            Block(found[1], found[2], self.text.count("\n", 0, found.start()) + 1)
            for found in _FENCE.finditer(self.text)
        ]

    def blocks(self, *languages: str) -> list[str]:
        """Code in one of these languages, in order; all of it if none is named."""
        return [b.code for b in self.all_blocks if not languages or b.language in languages]

    @property
    def headings(self) -> list[tuple[int, str]]:
        return [(len(marks), title) for marks, title in _HEADING.findall(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """What links to headings say; GitHub and the site name them alike."""
        words = (_NOT_IN_ANCHORS.sub("", title.lower()) for _, title in self.headings)
        return {text.replace(" ", "-") for text in words}

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def first_cells(self) -> list[list[str]]:
        """Names in code type in the first cell of each row that has some."""
        cells = re.findall(r"^\| (`.+?) \|", self.prose, re.MULTILINE)
        return [re.findall(r"`[^`]+`", cell) for cell in cells]

    @property
    def is_translation(self) -> bool:
        return self.name.endswith(_CHINESE)

    @property
    def twin(self) -> "Page":
        """The same page in the other language; it need not exist."""
        if self.is_translation:
            return Page(self.name.removesuffix(_CHINESE) + ".md")
        return Page(self.name.removesuffix(".md") + _CHINESE)


def all_pages() -> list[Page]:
    """What users read: the README and the documents, in both languages."""
    paths = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    return [Page(path.relative_to(ROOT).as_posix()) for path in sorted(paths)]
