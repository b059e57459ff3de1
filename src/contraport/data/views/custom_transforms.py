"""Random changes of the user's own: a callable on each item, in the processes that fetch, or on whole batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from contraport.data.data_loader import Share
from contraport.data.dataset import Batch, Dataset
from contraport.errors import UsageError, check, one_line_reason
from contraport.seeding import seed_global_generators, torch_seed

_ON_BATCHES = "kornia"


@dataclass(frozen=True)
class BatchTransform:
    """Says that a callable changes a batch, ``(b, ...)`` float, where the model is, and each item of it in its own way.

    >>> BatchTransform(lambda images: images + torch.rand(len(images), 1, 1, 1)).change(torch.zeros(2, 1, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """

    change: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CustomTransform:
    """A random change that is a callable.

    Attributes:
        change: the callable.
        on_batches: whether it takes batches, as modules of kornia and `BatchTransform` do; else it takes items: a
        transform
            of albumentations as ``change(image=...)`` with an array ``(H, W, C)``, all others as ``change(item)`` with
            a tensor as it is stored, such as uint8 ``(C, H, W)`` for torchvision's v2.
    """

    change: Callable[..., Any]
    on_batches: bool

    @property
    def name(self) -> str:
        """What it is called: the name of its class or function."""
        return getattr(self.change, "__name__", type(self.change).__name__)

    def of_item(self, item: Tensor) -> Tensor:
        """Return an item changed at random, by whatever random numbers the callable takes.

        Raises:
            UsageError: it fails, or gives no array or tensor.
        """
        try:
            if type(self.change).__module__.partition(".")[0].startswith("albumentations"):
                image = np.ascontiguousarray(np.moveaxis(item.numpy(), 0, -1))
                changed = np.asarray(self.change(image=image)["image"])
                return torch.from_numpy(np.ascontiguousarray(np.moveaxis(changed, -1, 0)))
            changed = self.change(item)
        except Exception as error:  # a stranger's code
            shape = tuple(item.shape)
            raise UsageError(
                f"augment: {self.name} fails on an item {item.dtype} {shape}: {one_line_reason(error)}"
            ) from error
        good = isinstance(changed, Tensor | np.ndarray)
        check(good, f"augment: expected {self.name} to return a tensor or an array, got {type(changed).__name__}.")
        return torch.as_tensor(changed)

    def of_batch(self, items: Tensor, share: Share | None) -> Tensor:
        """Return a batch changed; processes that share one draw each for their own part.

        Raises:
            UsageError: it fails, or returns another number of items.
        """
        drawn = int(torch.randint(2**31, ()))
        with torch.random.fork_rng(devices=[items.device] if items.device.type == "cuda" else []):
            seed_global_generators(torch_seed("data.views.batch", drawn, 0 if share is None else share.start))
            try:
                changed = self.change(items)
            except Exception as error:  # a stranger's code
                batch = f"{items.dtype} {tuple(items.shape)}"
                raise UsageError(f"augment: {self.name} fails on a batch {batch}: {one_line_reason(error)}") from error
        good = isinstance(changed, Tensor) and len(changed) == len(items)
        check(good, f"augment: expected {self.name} to return a tensor of {len(items)} items.")
        return cast(Tensor, changed)

    def of_items(self, items: Tensor, number: int, seeds: Sequence[Sequence[int]]) -> Tensor:
        """Return so many random changes of each item, ``(b, number, ...)``, that depend on its seeds alone."""
        rows = []
        for item, seed in zip(items, seeds, strict=True):
            views = []
            for view in range(number):
                with _seeded(self.change, [*seed, view]):
                    views.append(self.of_item(item))
            rows.append(torch.stack(views))
        return torch.stack(rows)


def parse_custom_transform(augment: Any) -> CustomTransform | None:
    """Return a callable as a random change; None of a name, or of nothing.

    Raises:
        UsageError: it is neither.
    """
    if augment is None or isinstance(augment, str):
        return None
    if isinstance(augment, BatchTransform):
        return CustomTransform(augment.change, True)
    check(callable(augment), f"augment: expected a name or a callable, got {augment!r}.")
    return CustomTransform(augment, type(augment).__module__.partition(".")[0] == _ON_BATCHES)


class Changed(Dataset):
    """A dataset whose views are changed item by item when they are fetched, ``(b, number, *shape)`` each.

    Args:
        dataset: the items.
        own: the change.
        number: how many views are made of each given one.
        seed: on which, the epoch, the item and the view what is random depends.
    """

    def __init__(self, dataset: Dataset, own: CustomTransform, *, number: int, seed: int) -> None:
        self.__dict__.update(dataset.__dict__)
        self._dataset = dataset
        self._own = own
        self._number = number
        self._seed = seed

    @property
    def in_memory(self) -> bool:
        """Whether a fetch only copies memory: it does not, so that other processes do it."""
        return False

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items at some positions, changed, as one batch."""
        batch = self._dataset.__getitems__(list(positions))
        epoch = getattr(positions, "epoch", 0)
        seeds = [[self._seed, epoch, position] for position in positions]
        views = tuple(self._own.of_items(view, self._number, seeds) for view in batch.views)
        return batch._replace(views=views)


@contextmanager
def _seeded(change: Any, seeds: Sequence[int]) -> Iterator[None]:
    """Seed all that a callable may draw from, and leave the process's own generators as they were."""
    seed = torch_seed("data.views", *seeds) % 2**32  # NumPy takes no more
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        seed_global_generators(seed)
        if hasattr(change, "set_random_seed"):  # albumentations draws from generators of its own
            change.set_random_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
