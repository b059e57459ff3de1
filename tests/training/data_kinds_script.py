"""Script that trains on a stream, on items with a custom transform, and on image files, in any number of processes.

    python -m tests.training.data_kinds_script FOLDER

FOLDER has `photos/`; the runs are FOLDER/stream, FOLDER/changed and FOLDER/decoded.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import contraport
from contraport.distributed import torchrun_process_group

SETTINGS = {"batch_size": 9, "encoder": "mlp", "optimizer": "sgd", "progress": False, "device": "cpu", "log_every": 1}


class NumberStream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.from_numpy(np.random.default_rng(0).normal(size=(40, 5))))


def add_noise(item: torch.Tensor) -> torch.Tensor:
    return item + torch.randn_like(item) / 10


def main(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    items = np.random.default_rng(1).normal(size=(40, 5))
    kinds = {
        "stream": {"data": NumberStream(), "steps": 6, "augment": "noise"},
        "changed": {"data": items, "augment": add_noise, "epochs": 2, "num_workers": 0},
        "decoded": {"data": folder / "photos", "encoder": "small-cnn", "image_size": 8, "epochs": 2, "num_workers": 0},
    }
    with torchrun_process_group("cpu"):
        for name, options in kinds.items():
            contraport.train(**SETTINGS | options, out=folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
