"""Accessibility checks of a page: names, contrast, headings and visible focus."""

from itertools import pairwise

from tests.browser import Browser

NAMED = {"button", "link", "slider", "spinbutton", "radio", "image", "region", "combobox", "searchbox", "navigation"}
"""Roles that need an accessible name."""

MIN_CONTRAST = 4.5
"""Minimum contrast of text, WCAG 2 level AA."""

_FOUND = """(() => {
  const of = ({ tagName, className, textContent }) => `${tagName}.${className} ${textContent.trim().slice(0, 30)}`;
  const seen = (element) => element.offsetParent !== null && !element.closest(".unseen, .skip, svg, [hidden]");
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  const parts = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, k) => sum + part * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = (element) => {
    const color = parts(getComputedStyle(element).backgroundColor);
    return color.length === 3 || color[3] === 1 || !element.parentElement ? color : ground(element.parentElement);
  };
  const contrast = (element) => {
    const [low, high] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) => seen(element)
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return {
    headings: [...document.querySelectorAll("h1, h2, h3, h4")].map((heading) => Number(heading.tagName[1])),
    faults: [
      ...[...document.querySelectorAll("th:not([scope])")].map((cell) => `a th without scope: ${of(cell)}`),
      ...[...document.querySelectorAll("img:not([alt])")].map((image) => `a picture without alt: ${of(image)}`),
      ...ids.filter((id, place) => ids.indexOf(id) !== place).map((id) => `an id twice: ${id}`),
      ...texts.map((text) => [contrast(text), text]).filter(([found]) => found < LEAST)
        .map(([found, text]) => `contrast ${found.toFixed(1)}: ${of(text)}`),
    ],
  };
})()"""


def accessibility_faults(browser: Browser) -> list[str]:
    """Return the accessibility faults of the open page."""
    result = browser.evaluate(_FOUND.replace("LEAST", str(MIN_CONTRAST)))
    problems = list(result["faults"])
    headings = result["headings"]
    if headings[:1] != [1] or headings.count(1) != 1 or any(after - before > 1 for before, after in pairwise(headings)):
        problems.append(f"headings out of order: {headings}")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in NAMED and not node.get("ignored") and not node.get("name", {}).get("value"):
            problems.append(f"a {role} without a name: {node.get('nodeId')}")
    return problems


def elements_without_visible_focus(browser: Browser, steps: int) -> list[str]:
    """Return the elements without a visible focus among those reached by a number of Tab presses."""
    problems = []
    for _ in range(steps):
        browser.press("Tab")
        problems.append(
            browser.evaluate(
                """(() => { const at = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(at);
                const unseen = outlineStyle === "none" || parseFloat(outlineWidth) < 1;
                return unseen ? at.outerHTML.slice(0, 60) : null; })()"""
            )
        )
    return [one for one in problems if one is not None]
