"""Wrappers that turn a user's callables into random transforms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from contraport.data.data_loader import LocalBatchOffset
from contraport.data.dataset import Batch, Dataset
from contraport.errors import UsageError, check, one_line_reason
from contraport.seeding import derive_torch_seed, fork_rng_with_lock, seed_torch_generators


@dataclass(frozen=True)
class BatchTransform:
    """Wrapper that marks a callable as a transform of whole batches.

    The callable takes floats ``(b, ...)`` on the model's device, and should change each item of the batch
    independently.

    >>> BatchTransform(lambda images: images + torch.rand(len(images), 1, 1, 1)).function(torch.zeros(2, 1, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """

    function: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CustomTransform:
    """Random transform given by the user as a callable.

    Attributes:
        function: callable that makes the random view.
        takes_batches: whether the callable takes batches, as modules of kornia and a `BatchTransform` do. Otherwise it
            takes items: a transform of albumentations is called as ``function(image=...)`` with an array ``(H, W, C)``,
            any other as ``function(item)`` with a tensor as stored, such as uint8 ``(C, H, W)`` for torchvision's v2.
    """

    function: Callable[..., Any]
    takes_batches: bool

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def draw_views_per_item(self, items: Tensor, num_views: int, seeds: Sequence[Sequence[int]]) -> Tensor:
        """Return random views of each item, seeded by item, ``(b, num_views, ...)``.

        Raises:
            UsageError: the callable fails, or returns no array or tensor.
        """
        rows, of_albumentations = [], type(self.function).__module__.partition(".")[0].startswith("albumentations")
        for item, seed in zip(items, seeds, strict=True):
            views = []
            for view in range(num_views):
                with (
                    _fork_and_seed_generators(self.function, [*seed, view]),
                    self._translate_callable_errors("an item", item),
                ):
                    if of_albumentations:
                        image = np.ascontiguousarray(np.moveaxis(item.numpy(), 0, -1))
                        channels_last = np.asarray(self.function(image=image)["image"])
                        changed = np.ascontiguousarray(np.moveaxis(channels_last, -1, 0))
                    else:
                        changed = self.function(item)
                message = f"augment: {self.name} must return a tensor or an array, got {type(changed).__name__}."
                check(isinstance(changed, Tensor | np.ndarray), message, "transform_output")
                views.append(torch.as_tensor(changed))
            rows.append(torch.stack(views))
        return torch.stack(rows)

    def transform_whole_batch(self, items: Tensor, offset: LocalBatchOffset | None) -> Tensor:
        """Return one random view of each item, from one call on the whole batch.

        Raises:
            UsageError: the callable fails, or returns another number of items.
        """
        seed = int(torch.randint(2**31, ()))
        with fork_rng_with_lock([items.device] if items.device.type == "cuda" else []):
            start = 0 if offset is None else offset.start
            seed_torch_generators(derive_torch_seed("data.views.batch", seed, start), items.device.type)
            with self._translate_callable_errors("a batch", items):
                changed = self.function(items)
        good = isinstance(changed, Tensor) and len(changed) == len(items)
        check(good, f"augment: {self.name} must return a tensor of {len(items)} items.", "transform_output")
        return cast(Tensor, changed)

    @contextmanager
    def _translate_callable_errors(self, what: str, values: Tensor) -> Iterator[None]:
        """Context manager that raises the callable's errors as `UsageError`."""
        try:
            yield
        except Exception as error:  # user code may raise anything
            message = f"augment: {self.name} fails on {what} {values.dtype} {tuple(values.shape)}: "
            raise UsageError(message + one_line_reason(error), kind="transform_failed") from error


def wrap_transform_unless_name(augment: Any) -> CustomTransform | None:
    """Wrap a callable as a custom transform, or return None for augmentation names.

    Raises:
        UsageError: the value is neither a name nor a callable.
    """
    if augment is None or isinstance(augment, str):
        return None
    if isinstance(augment, BatchTransform):
        return CustomTransform(augment.function, True)
    check(callable(augment), f"augment: must be a name or a callable, got {augment!r}.")
    return CustomTransform(augment, type(augment).__module__.partition(".")[0] == "kornia")


class DrawOnLoadDataset(Dataset):
    """Dataset that draws several random views of an item whenever it is loaded.

    A batch has one tensor ``(b, num_views, *shape)`` per stored view.

    Args:
        dataset: the items.
        transform: the transform.
        num_views: number of random views of each stored view.
        seed: seed of the random numbers, together with the epoch, the item and the view.
    """

    is_in_memory = False  # each fetch runs the transform, so worker processes speed up the loading

    def __init__(self, dataset: Dataset, transform: CustomTransform, *, num_views: int, seed: int) -> None:
        self.__dict__.update(dataset.__dict__)
        self._dataset = dataset
        self._transform = transform
        self._num_views = num_views
        self._seed = seed

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return a batch with random views of the items at given positions."""
        batch = self._dataset.__getitems__(list(positions))
        epoch = getattr(positions, "epoch", 0)
        seeds = [[self._seed, epoch, position] for position in positions]
        views = tuple(self._transform.draw_views_per_item(view, self._num_views, seeds) for view in batch.views)
        return batch._replace(views=views)


@contextmanager
def _fork_and_seed_generators(transform: Any, seeds: Sequence[int]) -> Iterator[None]:
    """Context manager that seeds the CPU generators, and restores them at the end."""
    seed = derive_torch_seed("data.views", *seeds) % 2**32  # the range that NumPy accepts
    python, numpy = random.getstate(), np.random.get_state()
    with fork_rng_with_lock([]):
        random.seed(seed)
        np.random.seed(seed)
        seed_torch_generators(seed, "cpu")
        if hasattr(transform, "set_random_seed"):  # albumentations has generators of its own
            transform.set_random_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
