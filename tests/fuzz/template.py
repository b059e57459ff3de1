"""Template folder of the fuzz cases: data in every format, and trained and evaluated runs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from contraport.cli import main

ITEMS = 24
DATA = ("data.npz", "pairs.npz", "one.npy", "series.npz", "table.csv", "table.parquet", "shards.tar", "photos", "hub")


def make_template() -> None:
    """Write the template to the working folder."""
    random = np.random.default_rng(0)
    labels = np.arange(ITEMS) % 3
    vectors = random.normal(size=(ITEMS, 5)) + labels[:, None]
    images = random.integers(0, 255, (ITEMS, 8, 8, 3)).astype(np.uint8)
    np.savez("data.npz", x=vectors, labels=labels)
    np.savez_compressed("pairs.npz", view0=vectors, view1=random.normal(size=(ITEMS, 3)), domains=labels % 2)
    np.savez("series.npz", x=random.normal(size=(ITEMS, 2, 16)), labels=labels)
    np.save("one.npy", vectors)
    rows = [",".join(map(str, [*vector.round(3), "abc"[label]])) for vector, label in zip(vectors, labels, strict=True)]
    Path("table.csv").write_text("\n".join(["a,b,c,d,e,label", *rows]) + "\n")
    encoded = [_encode_image(image, ("PNG", "JPEG", "BMP")[number % 3]) for number, image in enumerate(images)]
    columns = {"vector": vectors.tolist(), "image": encoded, "label": ["abc"[label] for label in labels]}
    pq.write_table(pa.table(columns), "table.parquet")
    for number, content in enumerate(encoded):
        path = Path("photos", f"class{number % 2}", f"{number}.{('png', 'jpg', 'bmp')[number % 3]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with tarfile.open("shards.tar", "w") as tar:
        for number, content in enumerate(encoded):
            _add_to_tar(tar, f"{number:03}.png", content)
            _add_to_tar(tar, f"{number:03}.json", b'{"label": %d}' % labels[number])
            _add_to_tar(tar, f"{number:03}.npy", _encode_array(vectors[number]))
    _save_to_disk(columns)
    for name, data in (("run", "data.npz"), ("seen", "photos")):
        quick = ["--progress", "false", "--num_workers", "0"]
        assert main(["train", "--data", data, "--out", name, "--epochs", "1", "--batch_size", "8", *quick]) == 0
        assert main(["evaluate", name, "--neighbors", "3", *quick]) == 0
    assert main(["embed", "seen", "--out", "seen.npz", *quick]) == 0
    np.savez("many.npz", view0=random.normal(size=(64, 5)), view1=random.normal(size=(64, 3)))
    Path("notes.txt").write_text("ten years of work\n")


def _save_to_disk(columns: dict[str, list[object]]) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns).save_to_disk("hub")


def _encode_image(image: np.ndarray, kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, kind)
    return content.getvalue()


def _encode_array(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def _add_to_tar(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
