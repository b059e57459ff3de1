"""Embedding of datasets by a frozen model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_items_of_shape, format_keyword_or_flag, pluralize
from contraport._utils.progress import ProgressBars
from contraport._utils.text_bytes import TEXT_SHAPE, is_text_batch
from contraport.data import Batch, Dataset, Views, build_loader
from contraport.data.streams import Stream
from contraport.encoders import Model
from contraport.encoders.builtin_networks import vectorize_texts
from contraport.errors import UsageError, check, check_integer
from contraport.options import keep_deprecated_module_names
from contraport.seeding import GENERATOR_LOCK, derive_torch_seed, fork_rng_locked_at_ends, seed_torch_generators

FORWARD_BLOCK_ITEMS = 64
"""Number of items per forward pass; constant, since the last bits of a matrix product may depend on its shape."""

LARGE_ITEM_VALUES, LARGE_ITEMS_PER_BLOCK = 10_000, 4
"""Number of values above which an image or series is large, and number of large items per block on a CPU: activations
of small blocks fit the caches, and the allocator reuses their memory instead of mapping new pages for each layer."""


ITEMS_PER_FINITE_CHECK = 2**13  # number of items that are checked for NaN and infinity at a time

__getattr__ = keep_deprecated_module_names(__name__, embed_dataset="embed_items_as_vectors")

PrepareModelInputs = Callable[[tuple[Tensor, ...]], Sequence[Tensor]]
"""Function from the stored views of a batch of items to the inputs of the model."""


class RawInputEncoder(nn.Module):
    """Parameter-free baseline encoder that returns flattened inputs or n-gram counts.

    Attributes:
        shapes: shape of one item of each view.
        downscaled_side: height and width to which images are downscaled; None if no image is large.
    """

    max_image_or_text_features: ClassVar[int] = 4_096

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        large = [shape for shape in shapes if len(shape) == 3 and math.prod(shape) > self.max_image_or_text_features]
        self.shapes = tuple(shapes)
        sides = (int((self.max_image_or_text_features / shape[0]) ** 0.5) for shape in large)
        self.downscaled_side = min(sides, default=None)

    def encode(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the flattened items or n-gram counts of each view, ``(b, F)`` each."""
        features = []
        for items in views:
            if is_text_batch(items):
                size = self.max_image_or_text_features // self.shapes.count(TEXT_SHAPE)
                features.append(vectorize_texts(items, size))
                continue
            floats = items.float() / 255 if items.dtype == torch.uint8 else items.float()
            if self.downscaled_side is not None and items.ndim == 4:
                floats = F.interpolate(floats, size=(self.downscaled_side, self.downscaled_side), mode="area")
            features.append(floats.flatten(1))
        return tuple(features)

    def forward(self, *views: Tensor) -> Tensor:
        """Return the concatenated features of all views of each item, `(b, F)`."""
        return torch.cat(self.encode(views), dim=1)


class LoaderConfig(NamedTuple):
    """Options of data loading, such as batch size and device."""

    batch_size: int = 512
    device: torch.device = torch.device("cpu")
    num_workers: int | None = None
    bars: ProgressBars = ProgressBars()

    def views_to_device(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the views of a batch, moved to the device."""
        return tuple([view.to(self.device) for view in batch.views])

    def collect_outputs(
        self,
        function: Callable[..., Tensor],
        model: nn.Module,
        prepare: PrepareModelInputs,
        dataset: Dataset,
        description: str,
    ) -> Tensor:
        """Apply `function` to all items in batches, and return the outputs as a CPU tensor."""
        outputs, start = torch.empty(0), 0
        for output, _ in self.iter_outputs_with_batches(function, model, prepare, dataset, description):
            if start == 0:
                # Filled in place: to join a list would need twice the memory. Autograd may use normal tensors only.
                with torch.inference_mode(False):
                    outputs = torch.empty(len(dataset.source_rows), *output.shape[1:], dtype=torch.float32)
            outputs[start : start + len(output)] = output
            start += len(output)
        return outputs

    def iter_outputs_with_batches(
        self,
        function: Callable[..., Tensor],
        model: nn.Module,
        prepare: PrepareModelInputs,
        dataset: Dataset,
        description: str,
    ) -> Iterator[tuple[Tensor, Batch]]:
        """Yield the output of `function` on each batch, and the batch."""
        check_integer("batch_size", self.batch_size)
        # Whole blocks, so that the position of an item in its block does not depend on the batch size.
        batch_size = math.ceil(self.batch_size / FORWARD_BLOCK_ITEMS) * FORWARD_BLOCK_ITEMS
        batches = build_loader(dataset, batch_size, num_workers=self.num_workers)
        total = None if isinstance(dataset, Stream) else math.ceil(len(dataset) / batch_size)
        try:
            for batch in self.bars.track(batches, description, total):
                views = self.views_to_device(batch)
                yield apply_in_fixed_blocks(function, views, model=model, prepare=prepare).float().cpu(), batch
        finally:
            batches.close()


def apply_in_fixed_blocks(
    function: Callable[..., Tensor], items: Sequence[Tensor], *, model: nn.Module, prepare: PrepareModelInputs = tuple
) -> Tensor:
    """Apply a frozen model in blocks of exactly 64 items.

    A smaller block is filled up with copies of its items. On a CPU each block is computed by one thread, large items in
    parts of `LARGE_ITEMS_PER_BLOCK`, and as many blocks run at once as torch has threads. The output for an item is bit
    for bit independent of the number of items, of the batch size and of the number of threads.

    Args:
        function: computes the output from the prepared views of a block, with the model.
        items: views, (n, ...) each.
        model: the model that the function uses. If parts of it are not from torch, torchvision, timm or contraport, or
            have hooks, blocks run one after the other: such parts may keep state during a pass.
        prepare: makes the inputs from the views of a block, one block after the other, since they may be random.

    >>> count = lambda x: x.new_full((len(x),), len(x))
    >>> apply_in_fixed_blocks(count, [torch.zeros(3, 2)], model=nn.Identity())
    tensor([64., 64., 64.])
    """
    blocks = list(zip(*[view.split(FORWARD_BLOCK_ITEMS) for view in items], strict=True))

    @torch.inference_mode()
    def prepare_block(block: tuple[Tensor, ...]) -> Sequence[Tensor]:
        positions = torch.arange(FORWARD_BLOCK_ITEMS, device=block[0].device) % len(block[0])
        return prepare(tuple(view[positions] for view in block))

    @torch.inference_mode()
    def forward(inputs: Sequence[Tensor]) -> Tensor:
        return function(*inputs)

    is_thread_safe = True
    for part in model.modules():
        is_known = type(part).__module__.partition(".")[0] in ("torch", "torchvision", "timm", "contraport")
        is_thread_safe &= is_known and not part._forward_hooks and not part._forward_pre_hooks

    @torch.inference_mode()
    def forward_on_cpu(inputs: Sequence[Tensor]) -> Tensor:
        is_large = any(view.ndim > 2 and view[0].numel() > LARGE_ITEM_VALUES for view in inputs)
        if is_thread_safe:  # channels-last is fastest for convolutions, but a foreign model may need the usual layout
            inputs = [view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view for view in inputs]
        parts = zip(
            *(view.split(LARGE_ITEMS_PER_BLOCK if is_large else FORWARD_BLOCK_ITEMS) for view in inputs), strict=True
        )
        return torch.cat([function(*part) for part in parts])

    if items[0].device.type != "cpu":
        outputs = [forward(prepare_block(block)) for block in blocks]
    else:
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads if is_thread_safe else 1, initializer=_init_worker_thread) as pool:
                futures: list[Future[Tensor]] = []
                for block in blocks:
                    futures.append(pool.submit(forward_on_cpu, pool.submit(prepare_block, block).result()))
                outputs = [future.result() for future in futures]
        finally:
            torch.set_num_threads(threads)  # new threads inherit the last value that any thread set
    return torch.cat([output[: len(block[0])] for output, block in zip(outputs, blocks, strict=True)])


def _init_worker_thread() -> None:
    """Make the torch operations of a worker thread use one thread."""
    torch.get_num_threads()  # otherwise the first computation overwrites the setting with the last value of any thread
    torch.set_num_threads(1)


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[None]:
    """Context manager that sets a model to evaluation mode without gradients."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, flag in training:
            module.training = flag


@contextmanager
def fixed_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Context manager that seeds torch's generators and restores their state on exit."""
    with fork_rng_locked_at_ends([device] if device.type == "cuda" else []):
        with GENERATOR_LOCK:
            seed_torch_generators(derive_torch_seed("embedding", seed), device.type)
        yield


def embed_items_as_vectors(
    model: Model,
    dataset: Dataset,
    *,
    views: Views | None = None,
    batch_size: int = 512,
    device: str | torch.device = "cpu",
    num_workers: int | None = None,
    progress: bool = False,
) -> Tensor:
    """Return the representation of all items of a dataset, ``(n, F)``.

    It is computed from unaugmented views, and is on the CPU. The model is moved to `device`, and not otherwise changed.

    Args:
        model: the model.
        dataset: the items.
        views: makes views of an item; default: the views that the dataset contains.
        batch_size: number of items loaded at a time, rounded up to a multiple of 64. It does not change the result.
        device: device to compute on.
        num_workers: number of processes that load data; default: 0 for data in memory, otherwise one per core but one.
        progress: show a progress bar on a terminal.

    Raises:
        UsageError: `batch_size` is not positive, the views do not have the model's shapes, or a feature is not finite.

    >>> from contraport.data import load
    >>> embed_items_as_vectors(Model(shapes=[(1, 8, 8)]), load("digits", "test")).shape
    torch.Size([449, 256])
    """
    views = views or Views(dataset, augment="none")
    check_views_fit_model(model, dataset, views)
    loader_config = LoaderConfig(batch_size, torch.device(device), num_workers, ProgressBars(shown=progress))
    return extract_item_features(model, dataset, views, loader_config)


def iter_embedded_batches(
    model: Model,
    dataset: Dataset,
    views: Views,
    loader_config: LoaderConfig,
    function: Callable[..., Tensor] | None = None,
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the frozen features of each batch, ``(b, F)``, and the batch.

    `function` computes other values ``(b, F)`` from the inputs of the model. The caller's random state may change.
    """
    check_views_fit_model(model, dataset, views)
    model.to(loader_config.device)
    views.to(loader_config.device)
    with inference_mode(model):
        for features, batch in loader_config.iter_outputs_with_batches(
            function or model, model, views.make_unaugmented, dataset, f"{dataset.split} items"
        ):
            check_finite_features(features, first_item=int(batch.ids[0]))
            yield features, batch


def extract_raw_input_features(dataset: Dataset, loader_config: LoaderConfig) -> Tensor:
    """Return the flattened inputs or n-gram counts of all items, ``(n, F)``."""
    views = Views(dataset, augment="none")
    return extract_item_features(RawInputEncoder(dataset.shapes), dataset, views, loader_config, "raw inputs")


@fork_rng_locked_at_ends([])  # a loader draws a seed for its workers from the caller's generator
def extract_item_features(
    encoder: nn.Module,
    dataset: Dataset,
    views: Views,
    loader_config: LoaderConfig,
    name: str = "encoder",
    *,
    prepare: PrepareModelInputs | None = None,
    function: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Return the frozen features of all items, `(n, F)`.

    They are those of unaugmented views, or of inputs made by `prepare`. `function` computes other values `(b, ...)`
    from these inputs. The caller's random state does not change.
    """
    encoder.to(loader_config.device)
    views.to(loader_config.device)
    with inference_mode(encoder):
        features = loader_config.collect_outputs(
            function or encoder, encoder, prepare or views.make_unaugmented, dataset, f"{name}: {dataset.split} items"
        )
    check_finite_features(features)
    return features


def embed_views(
    encoder: Model | RawInputEncoder,
    dataset: Dataset,
    views: Views,
    loader_config: LoaderConfig,
    name: str = "encoder",
    *,
    project: bool = False,
    view_kind: Literal["two random", "unaugmented"] = "two random",
) -> tuple[Tensor, ...]:
    """Return the frozen features of all items, one tensor `(n, F)` per view.

    Two random views are the same in every call, and the unaugmented ones are all views of the data. With `project`,
    return the projections that the loss compares, `(n, d)`.
    """
    encoder.to(loader_config.device)
    views.to(loader_config.device)
    has_one_tower = isinstance(encoder, RawInputEncoder) or len(encoder.towers) == 1
    is_random = view_kind == "two random"
    number = 2 if is_random else None

    def encode(*inputs: Tensor) -> Tensor:
        features = encoder.encode(inputs[:number] if has_one_tower else inputs)
        if isinstance(encoder, Model):
            features = encoder.project(features) if project else encoder.to_chosen_representations(features)
        return torch.stack(features[:number], dim=1)

    with fixed_seed(0, loader_config.device), inference_mode(encoder):
        stacked = loader_config.collect_outputs(
            encode, encoder, views if is_random else views.make_unaugmented, dataset, f"{name}: views"
        )
    check_finite_features(stacked)
    return stacked.unbind(dim=1)


def check_views_fit_model(model: Model, dataset: Dataset, views: Views) -> None:
    """Raise `UsageError` unless all items have the views that the model takes."""
    expected, actual = (
        f"{pluralize(len(shapes), 'view')} ({', '.join(map(describe_items_of_shape, shapes))})"
        for shapes in (model.shapes, views.unaugmented_shapes)
    )
    check(
        expected == actual,
        f"data: must have {expected}, as the model takes, got {actual} in {dataset.name!r}.",
        "shape",
    )
    check_column_names_match_model(model, dataset)
    if dataset.present is not None:
        missing = int((~dataset.present[:, list(model.representation_views)].all(1)).sum())
        message = f"data: {missing} of {len(dataset)} items of {dataset.name!r} lack a view that the representation "
        message += f"needs. Leave these items out, or choose another {format_keyword_or_flag('representation')}."
        check(missing == 0, message, "missing_view")


def check_column_names_match_model(model: Model, dataset: Dataset) -> None:
    """Raise `UsageError` if a view's columns are known to differ from those in training.

    Different numbers of columns are left to the check of shapes.
    """
    for view, expected, actual in zip(model.view_names, model.column_names, dataset.column_names, strict=False):
        if len(expected) == len(actual) and expected != actual:
            different = [pair for pair in zip(expected, actual, strict=True) if pair[0] != pair[1]]
            in_training, given = ([pair[side] for pair in different[:3]] for side in (0, 1))
            message = f"data: must have the columns of the training in view {view!r}, got {given} in place of "
            message += f"{in_training} in {dataset.name!r}. Rename these columns, or pass an array of their numbers."
            raise UsageError(message, kind="column_names")


def check_finite_features(features: Tensor, *, first_item: int = 0) -> None:
    """Raise `UsageError` if features contain NaN or infinity."""
    bad: list[int] = []
    for first in range(0, len(features), ITEMS_PER_FINITE_CHECK):  # torch finds the finite ones by a copy of all
        block = features[first : first + ITEMS_PER_FINITE_CHECK]
        bad += ((~block.isfinite().flatten(1).all(dim=1)).nonzero().flatten() + first).tolist()
    message = f"features: must be finite, got NaN or infinity, first for item {first_item + next(iter(bad), 0)}. "
    check(not bad, f"{message}Did the training diverge, or does the data contain NaN?", "not_finite")
