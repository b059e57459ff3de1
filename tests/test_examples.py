"""Runs of the scripts in `examples/`, with tiny settings and bundled data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from tests import TIMEOUT

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("photos.py --tiny --data digits", "an encoder of others, frozen"),
        pytest.param("photos.py --tiny --data digits --scenes", "80 photos, scenes", marks=pytest.mark.slow),
        ("photos.py --tiny --folder cards --ways edges", "32 photos, cards, judged on 8 others"),
        (
            "photos.py --tiny --data digits --ways pretrained --weights others.pth --encoder resnet10t --image_size 32",
            "weights of ImageNet, held, ahead of: weights of ImageNet, held, given",
        ),
        ("captions.py --tiny --data digits", "zero-shot, 10 classes by name"),
        ("text_pairs.py --tiny", "raw words and pieces"),
        ("finding.py --tiny --data digits --pages pages", "the original is the nearest of a copy"),
    ],
)
def test_examples_run(command: str, expected: str, tmp_path: Path) -> None:
    script, *args = command.split()
    if "--folder" in args:
        for number in range(40):
            path = tmp_path / "cards" / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((16, 16), number).save(path)
    if "--weights" in args:
        torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "others.pth")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, ROOT / "examples" / script, *args],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert expected in completed.stdout
    if "--pages" in args:
        assert (tmp_path / "pages" / "near.html").read_text().count('src="data:image/jpeg') == 13
