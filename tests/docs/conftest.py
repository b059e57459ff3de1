"""Data and runs that the pages of the documentation use."""

import numpy as np
import pytest
from PIL import Image
from pyarrow import table
from pyarrow.parquet import write_table

import contraport


@pytest.fixture(scope="session")
def documentation_data(tmp_path_factory):
    """Folder with small data and runs of the names on the pages."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    for kind in ("cats", "dogs"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(24):
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(
                folder / "photos" / kind / f"{number}.png"
            )
    x = rng.normal(size=(64, 4)).astype(np.float32)
    y = (x[:, :3] + 0.1 * rng.normal(size=(64, 3))).astype(np.float32)
    groups = np.arange(64) % 2
    names = ["blood_a", "blood_b", "blood_c", "blood_d", "walk_a", "walk_b", "walk_c", "group", "survey_weight"]
    rows = np.column_stack([x, y, groups, 1 + groups])
    np.savetxt(folder / "people.csv", rows, delimiter=",", header=",".join(names), comments="")
    np.savez(folder / "views.npz", view0=x, view1=y, view2=x[:, :2] ** 2, labels=groups)
    np.savez(folder / "pairs.npz", view0=x, view1=y)
    images = rng.integers(0, 256, (64, 3, 8, 8), dtype=np.uint8)
    np.savez(folder / "images.npz", view0=images, labels=groups, domains=np.arange(64) // 16)
    np.save(folder / "series.npy", rng.normal(size=(64, 2, 64)).astype(np.float32))
    similarities = np.exp(-np.square(x[:38, :1] - x[:38, 0]))  # between the 38 of 48 photos in the training split
    np.save(folder / "likeness.npy", similarities.astype(np.float32))
    sentences = [f"item {number} of the {kind}" for number in range(32) for kind in ("shop", "store")]
    (folder / "sentences.txt").write_text("\n".join(sentences))
    answers = [sentence.replace("item", "bag") for sentence in sentences]
    write_table(table({"question": sentences, "answer": answers}), folder / "pairs.parquet")
    scores = np.linspace(0, 1, len(sentences))
    lines = [f"{one},{other},{score}" for one, other, score in zip(sentences, answers, scores, strict=True)]
    (folder / "scored.csv").write_text("\n".join(["question,answer,score", *lines]))
    pictures = [(kind, number) for kind in ("cats", "dogs") for number in range(24)]
    lines = [f"photos/{kind}/{number}.png,{kind[:-1]} number {number},{kind[:-1]}" for kind, number in pictures]
    (folder / "captions.csv").write_text("\n".join(["image,caption,label", *lines]))
    few = {"epochs": 1, "batch_size": 8, "encoder": "small-cnn", "progress": False}
    for name in ("photos", "a", "b", "teacher"):
        contraport.train(data=folder / "photos", out=folder / "runs" / name, **few)
    return folder
