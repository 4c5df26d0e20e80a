"""Accessibility problems of a page: too little contrast, fields without a label."""

from playwright.sync_api import Page

_LOOK = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce(
    (sum, weight, rank) => sum + weight * linear(rgb[rank] / 255), 0);
  const behind = (part) => {
    for (; part; part = part.parentElement) {
      const found = numbers(getComputedStyle(part).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), part = walk.currentNode.parentElement;
    if (!text || !part.offsetParent || part.closest("svg, datalist, .sr, .skip")) continue;
    const style = getComputedStyle(part);
    const [low, high] = [light(numbers(style.color)), light(behind(part))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 18.66 ? 3 : 4.5)) {
      found.push(`${part.tagName}.${part.className} ${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
    }
  }
  for (const one of document.querySelectorAll("input:not([type=hidden]), select, button")) {
    const isNamed = one.labels?.length || one.ariaLabel || one.textContent.trim();
    if (!isNamed) found.push(`without a name: ${one.outerHTML.slice(0, 80)}`);
  }
  return found;
}"""
"""The ratios are those of WCAG 2, level AA."""


def unreadable(page: Page) -> list[str]:
    """In light and in dark."""
    found: list[str] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        found += [f"{scheme}: {one}" for one in page.evaluate(_LOOK)]
    return found
