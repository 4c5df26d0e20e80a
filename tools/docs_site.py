"""A hook of mkdocs: the pages beside docs/ become pages of the site, and links know both places.

A link in a document leads through the repository. On the site pages of docs/ stay where they are,
those at the root of the repository and the files for deployment are below project/, and what is
not published, such as source code, is named without a link.
"""

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = "project"
PUBLISHED: Final = (
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "STYLE.md",
    "CHANGELOG.md",
    "LICENSE",
)
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    deployed = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy").iterdir())
    for name in (*PUBLISHED, *deployed):
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{PLACE}/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    here = repository_path(page.file.src_uri)
    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: relinked(found, here), part) for part in parts[::2]]
    return "".join(parts)


def repository_path(uri: str) -> str:
    """Where a file of the site lies in the repository."""
    return uri.removeprefix(f"{PLACE}/") if uri.startswith(f"{PLACE}/") else f"docs/{uri}"


def site_uri(name: str) -> str | None:
    """Where a file of the repository lies in the site; None if it does not."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"{PLACE}/{name}" if name in PUBLISHED or name.startswith("deploy/") else None


def relinked(found: re.Match[str], here: str) -> str:
    mark, text, target = found.groups()
    if re.match(r"[a-z]+:|#", target):
        return found[0]
    place, sign, anchor = target.partition("#")
    uri = site_uri(normpath(f"{Path(here).parent.as_posix()}/{place}"))
    if uri is None:
        return text
    mine = site_uri(here)
    assert mine is not None, f"{here} is a page and not on the site"
    return f"{mark}[{text}]({relpath(uri, Path(mine).parent.as_posix())}{sign}{anchor})"
