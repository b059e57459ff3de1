"""The page as a browser sees it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from contraport.reporting import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"),
)


def opened(page: Path, profile: Path) -> tuple[str, list[str]]:
    """Return the document after its scripts have run, and what they said to the console."""
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", page.absolute().as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return result.stdout, re.findall(r"CONSOLE.*", result.stderr)


@NEEDED
def test_every_plot_is_drawn_and_no_script_fails(make_run, tmp_path) -> None:
    runs = [make_run("labelled"), make_run("unlabelled", labels=False, seed=1), make_run("vectors", images=False)]
    page = report([*runs, make_run("unevaluated", evaluated=False)], out=tmp_path / "page.html")
    document, console = opened(page, tmp_path / "profile")
    assert console == []
    plots = re.findall(r'<div class="plot [a-z]+[^"]*" id="([a-z]+-[a-z0-9]+)"', document)
    assert plots == ["curve-loss", "curve-lr", "scatter-0", "scatter-1", "scatter-2"] + [
        f"{kind}-{run}" for run in range(3) for kind in ("plan", "target")
    ]
    assert document.count('class="main-svg"') >= len(plots)
    assert len(re.findall(r'class="trace scatter', document)) >= 2 * 4 + 3 + 1 + 3
    assert len(re.findall(r'<g class="hm"', document)) == 6
    assert "var(--" not in "".join(re.findall(r'<svg class="main-svg".*?</svg>', document, flags=re.DOTALL))


@NEEDED
def test_untrusted_names_run_nothing(make_run, tmp_path) -> None:
    attack = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
    run = make_run("<i>run", data=attack, objective=attack, class_names=(attack, "</script>", "'\"`"))
    page = report([run, make_run("other")], out=tmp_path / "page.html")
    document, console = opened(page, tmp_path / "profile")
    assert console == []
    title = re.search(r"<title>(.*?)</title>", document, flags=re.DOTALL)
    assert title is not None
    assert title[1].startswith("Two small-cnn encoders trained on")
