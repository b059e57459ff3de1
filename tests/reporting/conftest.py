from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport._utils.files import write_json, write_npz
from contraport.runs import Run, WritableRun

Maker = Callable[..., Run]


def plan_and_target(items: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    kernel = np.exp(3 * np.random.default_rng(seed).normal(size=(2 * items, 2 * items)))
    np.fill_diagonal(kernel, 0)
    target = np.roll(np.eye(2 * items), items, axis=1) / (2 * items)
    return (0.9 * kernel / kernel.sum()).astype(np.float32), target.astype(np.float32)


@pytest.fixture
def make_run(tmp_path: Path) -> Maker:
    """Return a function that writes the files of a trained and evaluated run."""

    def make(
        name: str = "nt-xent",
        *,
        data: str = "digits",
        evaluated: bool = True,
        labels: bool = True,
        images: bool = True,
        class_names: tuple[str, ...] = ("zero", "one", "two"),
        metrics: bool = True,
        seed: int = 0,
        num_intermediate: int = 0,
        audited: bool = False,
        **config: Any,
    ) -> Run:
        generator = np.random.default_rng(seed)
        settings = {"data": data, "objective": "nt-xent", "encoder": "small-cnn", "epochs": 5, "seed": seed}
        run = WritableRun.create(tmp_path / "runs" / name, settings | config)
        if metrics:
            loss = np.exp(-np.arange(20) / 5) + 0.1 * seed
            run.replace_metrics(
                {"step": step, "epoch": step // 4, "seconds": 0.5 * step, "loss": loss[step], "lr": 1e-3 * (20 - step),
                 "temperature": 0.5, "images_per_second": 1000.0, "data_wait": 0.02}
                for step in range(20)
            )  # fmt: skip
        if not evaluated:
            return run
        keys = ("linear_probe", "knn") if labels else ()
        rows = {
            row: dict.fromkeys(keys, 0.9 + 0.01 * rank + 0.001 * seed * (row == "trained"))
            | {"alignment": 0.3 - 0.1 * rank, "uniformity": -1.0 - rank, "effective_rank": 10.0}
            for rank, row in enumerate(("raw", "untrained", "trained"))
        }
        notes = [] if labels else ["No labels, so no linear probe and no kNN."]
        differences = {
            baseline: {
                key: {"value": value - rows[baseline][key], "low": value - rows[baseline][key] - 1e-4,
                      "high": value - rows[baseline][key] + 1e-4}
                for key, value in rows["trained"].items()
            }
            for baseline in ("raw", "untrained")
        }  # fmt: skip
        course = np.linspace(0.5, 0.9, num_intermediate)
        for epoch, value in enumerate(course, start=1):
            rows[f"epoch {epoch}"] = dict.fromkeys(rows["trained"], float(value))
        if labels and images:
            rows["trained"] |= {f"{kind}@{level}": 0.9 - 0.1 * level for kind in ("noise", "blur") for level in (1, 5)}
        evaluation = {
            "epochs": num_intermediate + 1,
            "data": data,
            "classes": 3,
            "seconds": 1.0,
            "notes": notes,
            "rows": rows,
            "differences": differences,
        }
        write_json(run.evaluation_path, evaluation)
        plan, target = plan_and_target(6, seed)
        samples = {"points": generator.normal(size=(30, 2)), "projection": np.array("t-SNE"), "plan": plan}
        samples |= {"target": target, "plan_items": np.array(6)}
        if labels:
            samples |= {"labels": np.arange(30) % 3, "plan_labels": np.sort(np.arange(6) % 3)}
            samples["class_names"] = np.array(class_names)
            samples["confusion"] = np.array([[8, 2, 0], [0, 10, 0], [1, 0, 9]])
            mistaken_views = generator.integers(0, 100, (3, 1, 8, 8) if images else (3, 6))
            samples |= {"mistaken": np.array([7, 12, 3]), "mistaken_true": np.array([0, 0, 2])}
            samples |= {"mistaken_told": np.array([1, 1, 0]), "mistaken_sure": np.array([0.98, 0.7, 0.5])}
            samples |= {
                "mistaken_views": np.array(["view0"]),
                "mistaken_0": mistaken_views.astype(np.uint8 if images else np.int8),
            }
        order = np.arange(30) if not labels else np.argsort(np.arange(30) % 3, kind="stable")
        samples |= {"ids": 100 + np.arange(30), "losses": generator.random(30).astype(np.float32)}
        samples["neighbors"] = np.stack([(np.arange(30) + step) % 30 for step in (3, 1, 6)], axis=1)
        samples |= {"spectrum": np.exp(-np.arange(8.0)), "cosines": np.cos(order[:, None] - order)}
        if labels:
            samples["cosine_labels"] = np.sort(np.arange(30) % 3)
        if images:
            samples["thumbnails"] = generator.integers(0, 255, (30, 1, 8, 8), dtype=np.uint8)
            for side in (1, 2):
                samples[f"plan_view_{side}"] = generator.integers(0, 255, (6, 1, 8, 8), dtype=np.uint8)
        if num_intermediate:
            earlier = [plan_and_target(6, seed + 1 + k)[0] for k in range(num_intermediate)]
            samples["plan_epochs"] = np.arange(1, num_intermediate + 2)
            samples["plans"] = np.stack([*earlier, plan])
            samples["targets"] = np.stack([target] * (num_intermediate + 1))
        write_npz(run.samples_path, samples)
        if audited:
            scores = np.linspace(0, 1, 60)
            result = {"scores": scores, "mismatched": scores[:30] / 3, "fdr": scores, "kept": scores > 0.2}
            result |= {"partners": np.where(scores < 0.1, 7, -1), "partner_scores": scores, "epoch": np.array(5)}
            numbers = {"rate": 0.1, "low": 0.05, "high": 0.15, "remembered": 0.5}
            if images:
                pictures = generator.integers(0, 255, (10, 3, 8, 8), dtype=np.uint8)
                texts = np.array([f"<b>pair {k}" for k in range(10)])
                worst_pairs = {"worst": np.arange(10), "worst_1": pictures, "worst_2": texts, "worst_better": texts}
                write_npz(run.samples_path, samples | worst_pairs | {"worst_views": np.array(["image", "text"])})
            run.save_arrays(run.pairs_path, result | {name: np.array(number) for name, number in numbers.items()})
        return run

    return make
