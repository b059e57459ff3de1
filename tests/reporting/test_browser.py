"""Report in a browser: figures, hovering, clicking, the slider and selections."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.accessible import accessibility_faults, elements_without_visible_focus
from tests.browser import CHROMIUM, Browser

from contraport._utils.files import write_json, write_npz
from contraport.reporting import report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as opened:
        yield opened


def middle(browser: Browser, selector: str) -> tuple[float, float]:
    """Scroll to an element and return its center."""
    result = browser.evaluate(
        f"""(() => {{ const element = document.querySelector({json.dumps(selector)});
        element.scrollIntoView({{ block: "center", behavior: "instant" }});
        const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
    )
    return result[0], result[1]


def text(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))


def test_every_figure_is_drawn_and_no_script_fails(browser, make_run, tmp_path) -> None:
    runs = [make_run("labelled", num_intermediate=2, audited=True), make_run("unlabelled", labels=False, seed=1)]
    runs += [make_run("vectors", images=False), make_run("unevaluated", evaluated=False)]
    browser.open(report(runs, out=tmp_path / "page.html"))
    assert browser.messages == []
    empty = (
        "[...document.querySelectorAll('.plot')].filter((box) => !box.querySelector('.main-svg')).map((box) => box.id)"
    )
    assert browser.evaluate(empty) == []
    keys = browser.evaluate("[...document.querySelectorAll('.plot')].map((box) => box.id)")
    assert {"curve-loss", "map-0", "map-1", "map-2", "plan-2", "target-2", "confusion-0", "cosines-1"} <= set(keys)
    assert {"spectrum", "sphere", "robust-noise", "on-target", "epochs-knn", "scores-0"} <= set(keys)
    assert browser.evaluate("document.querySelectorAll('#pairs .preview img').length") == 10
    assert text(browser, "#pairs .preview p") == "<b>pair 0"
    drawn = "[...document.querySelectorAll('.main-svg')].map((svg) => svg.outerHTML).join('')"
    assert "var(--" not in browser.evaluate(drawn)


def test_pointing_clicking_sliding_and_choosing(browser, make_run, tmp_path) -> None:
    """One page and one browser, as each takes seconds to start."""
    runs = [make_run("one", num_intermediate=2), make_run("two", num_intermediate=2, seed=1)]
    browser.open(report(runs, out=tmp_path / "page.html"))

    # A point shows its picture, and a click its neighbors in both maps, as these have the same items.
    fourth = "#map-0 .trace.scatter .point:nth-child(4)"
    browser.retry(lambda: browser.point(*middle(browser, fourth)), "!document.getElementById('tip').hidden")
    assert "test item 1" in text(browser, "#tip")
    assert browser.evaluate("document.querySelector('#tip i').className").startswith("pic sheet-")
    browser.retry(
        lambda: browser.point(*middle(browser, fourth), click=True),
        "document.querySelector('[data-map=\"map-0\"]').value !== '1'",
    )
    selected = browser.evaluate("document.querySelector('[data-map=\"map-0\"]').value")
    assert browser.evaluate("document.querySelector('[data-map=\"map-1\"]').value") == selected
    assert browser.evaluate("document.querySelectorAll('[data-strip=\"map-1\"] .pic').length") == 1 + 3

    # The same by keyboard: the number of a point.
    browser.evaluate("document.querySelector('[data-map=\"map-1\"]').focus()")
    browser.press("ArrowUp")
    browser.wait(f"document.querySelector('[data-map=\"map-0\"]').value === '{int(selected) + 1}'")

    # Colors by loss, with the limits of their scale.
    assert browser.evaluate("document.querySelector('.scale.continuous').hidden")
    browser.point(*middle(browser, "input[name=color][value=loss]"), click=True)
    browser.wait("!document.querySelector('.scale.continuous').hidden")
    assert text(browser, ".scale.continuous .low").startswith("loss 0.")
    assert browser.evaluate("Array.isArray(document.getElementById('map-0').data[0].marker.color)")

    # A class is hidden in both maps, and a run in all curves.
    browser.point(*middle(browser, "button[data-toggles='.plot.map'][data-meta='1']"), click=True)
    browser.wait("document.getElementById('map-1').data[1].visible === false")
    assert browser.evaluate("document.getElementById('map-0').data[0].visible") is not False
    labels = "document.getElementById('map-1').layout.annotations.map(({ text, visible }) => [text, visible !== false])"
    assert browser.evaluate(labels) == [["zero", True], ["one", False], ["two", True]]
    browser.point(*middle(browser, "#training button[data-meta='0']"), click=True)
    browser.wait("document.getElementById('curve-loss').data[0].visible === false")
    assert (
        browser.evaluate("document.querySelector('#epochs button[data-meta=\"0\"]').getAttribute('aria-pressed')")
        == "false"
    )

    # Curves along another axis.
    browser.point(*middle(browser, "input[name=along][value=seconds]"), click=True)
    browser.wait("document.getElementById('curve-loss').layout.xaxis.title.text === 'training time, s'")
    assert browser.evaluate("document.getElementById('curve-loss').data[1].x.at(-1)") == 9.5

    # The slider, by keys, changes the plan, its number and its lines.
    before = browser.evaluate("JSON.stringify(document.getElementById('plan-0').data[0].z)")
    lines = browser.evaluate("document.querySelector('.card.plan svg').outerHTML")
    browser.evaluate("document.querySelector('.slider input').focus()")
    browser.press("ArrowLeft")
    browser.wait("document.querySelector('.epoch').textContent === '2'")
    assert browser.evaluate("JSON.stringify(document.getElementById('plan-0').data[0].z)") != before
    assert browser.evaluate("document.querySelector('.card.plan .lines svg').outerHTML") != lines
    assert browser.evaluate("document.querySelector('.slider input').getAttribute('aria-valuetext')").startswith(
        "epoch 2, "
    )

    on_target = text(browser, ".card.plan .on-target")
    for figure in ("#plan-0", ".card.plan .lines"):
        label = browser.evaluate(f"document.querySelector('{figure}').getAttribute('aria-label')")
        assert f" {on_target} of " in label

    # Selections remain after a change of theme.
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=scheme)
    browser.wait("document.getElementById('curve-loss').layout.font.color === '#a3abb5'")
    assert browser.evaluate("document.getElementById('map-1').data[1].visible") is False
    assert browser.evaluate("Array.isArray(document.getElementById('map-0').data[0].marker.color)")
    assert browser.messages == []


def test_page_fits_a_phone(browser, make_run, tmp_path) -> None:
    browser.resize(390, 800)
    runs = [make_run("nt-xent", num_intermediate=1), make_run("gca-uot", seed=1)]
    for run in runs:  # an interval below zero is the widest
        below = {"uniformity": {"low": -1.409, "high": -1.363}}
        intervals = {"intervals": dict.fromkeys(("raw", "untrained", "trained"), below)}
        write_json(run.evaluation_path, run.evaluation() | intervals)
    browser.open(report(runs, out=tmp_path / "page.html"))
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    wide = """[...document.querySelectorAll(".scroll")].filter((box) =>
        box.offsetParent && box.scrollWidth > box.clientWidth).map((box) => box.getAttribute("aria-label"))"""
    assert browser.evaluate(wide) == []
    assert browser.messages == []

    # With more runs no word of the name of a baseline is broken.
    third = make_run("rince", seed=2)
    write_json(third.evaluation_path, third.evaluation() | intervals)
    browser.open(report([*runs, third], out=tmp_path / "three.html"))
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    lines = """[...document.querySelectorAll("thead .baseline > span")].map((name) => {
        const range = document.createRange(); range.setStart(name.firstChild, 0);
        range.setEnd(name.firstChild, name.textContent.indexOf(" ")); return range.getClientRects().length; })"""
    assert set(browser.evaluate(lines)) == {1}

    # Long unbroken names of runs, data and classes; a table of many runs scrolls, with a hint.
    options = {"class_names": ("k" * 80, "l" * 80, "m" * 80), "audited": True}
    runs = [make_run(f"{letter * 80}", data=f"/data/{letter * 80}.npz", **options) for letter in "abcd"]
    runs += [make_run(f"{letter * 80}", seed=3) for letter in "efgh"]
    browser.open(report(runs, out=tmp_path / "long.html"))
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    hidden = (
        "[...document.querySelectorAll('.scroll')].filter((box) => box.offsetParent).map((box) => "
        "[box.scrollWidth > box.clientWidth, box.previousElementSibling.hidden])"
    )
    assert {(True, False), (False, True)} == {tuple(result) for result in browser.evaluate(hidden)}

    # Names of classes beside a plan have one line each.
    browser.open(report([make_run("words", images=False, **options)], out=tmp_path / "words.html"))
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    high = "[...document.querySelectorAll('.lines .word')].map((word) => word.getBoundingClientRect().height)"
    assert max(browser.evaluate(high)) <= 30


def test_page_is_accessible(browser, make_run, tmp_path) -> None:
    runs = [make_run("one", num_intermediate=2, audited=True), make_run("two", images=False)]
    browser.open(report(runs, out=tmp_path / "page.html"))
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert accessibility_faults(browser) == []
    assert elements_without_visible_focus(browser, 30) == []
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert accessibility_faults(browser) == []


def test_untrusted_names_run_no_code(browser, make_run, tmp_path) -> None:
    attack = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
    run = make_run(
        "<i>run", data=attack, objective=attack, class_names=(attack, "</script>", "'\"`"), num_intermediate=2
    )
    texts = make_run("texts", images=False)
    write_npz(texts.samples_path, texts.page_arrays() | {"texts": np.array([attack] * 30)})
    browser.open(report([run, texts], out=tmp_path / "page.html"))
    assert browser.messages == []
    assert attack in text(browser, "[data-strip='map-1']")
    assert browser.evaluate("document.title").startswith("2 small-cnn encoders trained on")
    assert browser.evaluate("document.querySelectorAll('img:not([src^=\"data:image/\"])').length") == 0
