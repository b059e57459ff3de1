"""Simulated mismatches, corruptions, class imbalance and domain shifts of datasets.

The perturbation of an item depends only on its row in its source; that of mismatched pairs depends on a seed too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.lazy_imports import LazyModule
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.catalog.data_option_parsers import DOMAINS_BY_SHIFT, CorruptionSpec, DomainShiftSpec, MismatchSpec
from contraport.data.dataset import Batch, Dataset
from contraport.data.splits import PositionArray
from contraport.data.stores import ArrayStore, StoreWrapper, TransformedStore
from contraport.errors import UsageError, check
from contraport.seeding import derive_torch_seed, fork_rng_with_lock, numpy_generator, seed_torch_generators

if TYPE_CHECKING:
    from torchvision.transforms.v2 import functional as transforms
else:
    transforms = LazyModule("torchvision.transforms.v2.functional")

_CORRUPTION_STRENGTHS_BY_KIND: dict[str, tuple[float, ...]] = {
    "noise": (0.04, 0.08, 0.12, 0.18, 0.26),  # standard deviation, relative to the pixel range
    "blur": (0.010, 0.020, 0.030, 0.045, 0.060),  # standard deviation, relative to the side
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # offset, relative to the pixel range
    "contrast": (0.7, 0.5, 0.35, 0.2, 0.1),  # remaining fraction of the distance from the mean
    "occlusion": (0.05, 0.1, 0.2, 0.3, 0.4),  # fraction of the area under a square of the mean gray
    "jpeg": (50, 25, 15, 10, 5),  # quality
}
"""Strength of each kind of corruption at the severities 1 to 5."""


RemainingCorrectPairMask: TypeAlias = NDArray[np.bool_]
"""Mask of the pairs that remain correct after swaps, ``(m,)``."""


class OneViewDatasetWithMismatchedPartners(Dataset):
    """One-view dataset whose batches hold each item and an assigned, partly wrong, partner.

    The first random view is made of the item and the others of its partner; see `contraport.data.Views`.

    Attributes:
        mismatched_partners: position of each item's partner, int64 ``(n,)``.
    """

    has_mismatched_partners = True
    mismatched_partners: Tensor

    def __getitems__(self, positions: list[int]) -> Batch:
        batch = super().__getitems__(positions)
        return batch._replace(views=(*batch.views, *self.store.fetch_views(self.mismatched_partners[batch.ids])))


@dataclass(frozen=True)
class MismatchedLaterViewsStore(StoreWrapper):
    """Store with mismatched views: all but the first come from another item."""

    partners: Tensor

    @property
    def view_content_digests(self) -> Tensor | None:
        digests = self.store.view_content_digests
        return None if digests is None else torch.cat([digests[:, :1], digests[self.partners, 1:]], dim=1)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        first, *_ = self.store.fetch_views(positions)
        _, *others = self.store.fetch_views(self.partners[positions])
        return first, *others


def draw_mismatched_partners(dataset: Dataset, mismatch: MismatchSpec, *, seed: int) -> Tensor:
    """Draw wrong partners for a share of the items, and return all partners, ``(n,)``.

    A share `mismatch.share` of items get an item with different content in each view, if any; the rest get themselves.

    Raises:
        UsageError: partners are to be exchanged within classes, and the data have no labels.
    """
    good = not mismatch.within_class or dataset.labels is not None
    message = f"mismatch: partners of the same class require labels, and {dataset.name!r} has none."
    check(good, message, "missing_labels")
    partners, random = torch.arange(len(dataset)), numpy_generator("data.mismatch", seed)
    groups = dataset.labels if mismatch.within_class else torch.zeros(len(dataset), dtype=torch.int64)
    assert groups is not None
    for group in groups.unique():
        members = (groups == group).nonzero()[:, 0]
        number = round(mismatch.share * len(members))
        if number > 1:  # a single item has no other to exchange with
            chosen = members[torch.from_numpy(random.permutation(len(members))[:number])]
            partners[chosen] = assign_wrong_partners(chosen, dataset.view_content_ids_if_repeated, random)
    return partners


def assign_wrong_partners(
    shuffled_items: Tensor, view_content_ids: Tensor | None, random: np.random.Generator, *, shift: int = 1
) -> Tensor:
    """Give each item another item's partner at random, int64 ``(m,)``.

    An item and the item whose partner it gets differ in the content of every view. With two views, no item has the
    content of the new pair, which would be correct then. An item keeps its own partner if no such item was found.

    Args:
        shuffled_items: the items in random order, int64 ``(m,)``.
        view_content_ids: `assign_content_ids_by_view` of all items, ``(n, views)``; None if no content repeats.
        random: generator for the exchanges among items that share content.
        shift: offset of the other item in the given order, if no content repeats.

    >>> random = np.random.default_rng(0)
    >>> assign_wrong_partners(torch.tensor([4, 2, 7]), None, random).tolist()
    [7, 4, 2]
    >>> partners = assign_wrong_partners(torch.tensor([0, 1, 2, 3]), torch.tensor([[0], [0], [1], [1]]), random)
    >>> sorted(partners[:2].tolist()), sorted(partners[2:].tolist())
    ([2, 3], [0, 1])
    """
    if view_content_ids is None:
        return shuffled_items.roll(shift)
    first, second = shuffled_items.numpy(), shuffled_items.roll(shift).numpy().copy()
    still_correct = swap_correct_pairs(first, second, view_content_ids.numpy(), random)
    return torch.from_numpy(np.where(still_correct, first, second))


def swap_correct_pairs(
    first: PositionArray, second: PositionArray, view_content_ids: NDArray[np.int64], random: np.random.Generator
) -> RemainingCorrectPairMask:
    """Make correct pairs wrong by swapping second items in place.

    At most 50 rounds of swaps with random pairs are made. A pair of two items is correct if they share the content of a
    view, or if some item has the first view of the first item and the second view of the second, as in a coupling whose
    rows have several partners. The latter holds for two views only.

    Args:
        first: first item of each pair, int64 ``(m,)``.
        second: second item of each pair, int64 ``(m,)``.
        view_content_ids: `assign_content_ids_by_view` of all items, ``(n, views)``.
        random: generator for the pairs that exchange their second items.
    """
    base, is_paired = view_content_ids[:, -1].max(initial=0) + 1, view_content_ids.shape[1] == 2
    correct_codes = np.unique(view_content_ids[:, 0] * base + view_content_ids[:, -1])

    def correct_mask(first: PositionArray, second: PositionArray) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (view_content_ids[first] == view_content_ids[second]).any(axis=1)
        if not is_paired:
            return same
        codes = view_content_ids[first, 0] * base + view_content_ids[second, -1]
        same |= correct_codes[np.searchsorted(correct_codes, codes).clip(max=len(correct_codes) - 1)] == codes
        return same

    for _ in range(50):
        still_correct = np.flatnonzero(correct_mask(first, second))
        if len(still_correct) == 0:
            break
        for one, other in zip(still_correct, random.integers(len(first), size=len(still_correct)), strict=True):
            if not correct_mask(first[[one, other]], second[[other, one]]).any():
                second[one], second[other] = second[other], second[one]
    return correct_mask(first, second)


def replace_views_after_first(dataset: Dataset, partners: Tensor) -> Dataset:
    """Replace all views but the first of each item by those of another item.

    Raises:
        UsageError: items lack a view.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((np.arange(4.0)[:, None], np.arange(4.0)[:, None]))
    >>> replace_views_after_first(pairs, torch.tensor([0, 2, 1, 3])).__getitems__([0, 1]).views[1].flatten().tolist()
    [0.0, 2.0]
    """
    message = f"mismatch: requires all views of all items, and some items of {dataset.name!r} lack one."
    check(dataset.present is None, message, "missing_views")
    if len(dataset.shapes) > 1:
        return dataset.with_store(MismatchedLaterViewsStore(dataset.store, partners), keep_digests=False)
    paired = OneViewDatasetWithMismatchedPartners(**dataset.get_field_values())
    paired.mismatched_partners = partners
    return paired


def make_imbalanced(dataset: Dataset, ratio: float) -> Dataset:
    """Return a long-tailed subset, with class sizes that decrease geometrically.

    The largest and the smallest size differ by a factor of `ratio`. The first class may keep as many items as the
    largest class has, the last a `ratio`-th of that, at least one. The items that are kept are always the same.

    Source: the long-tailed benchmarks of Cui et al. (2019), Class-balanced loss, section 5.

    Raises:
        UsageError: there are fewer than two classes.

    >>> from contraport.data import from_arrays
    >>> even = from_arrays(np.ones((30, 2)), labels=[0, 1, 2] * 10)
    >>> make_imbalanced(even, 9.0).labels.bincount().tolist()
    [10, 3, 1]
    """
    labels = dataset.labels
    if labels is None or len(counts := labels.bincount()) < 2:
        message = f"imbalance: requires at least two classes, and {dataset.name!r} has none or one."
        raise UsageError(message, kind="missing_labels")
    shares = ratio ** -(torch.arange(len(counts)) / (len(counts) - 1))
    allowed = (counts.max() * shares).round().clamp(min=1)
    shuffled = torch.from_numpy(numpy_generator("data.imbalance").permutation(len(labels)))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]  # within the item's class
    return dataset.subset(by_class[rank < allowed[labels[by_class]]].sort().values)


def class_balanced_sample_weights(dataset: Dataset) -> Tensor:
    """Return sample weights of mean 1 that weight all classes equally, ``(n,)``.

    Raises:
        UsageError: there are no classes.

    >>> from contraport.data import from_arrays
    >>> class_balanced_sample_weights(from_arrays(np.ones((4, 2)), labels=["rare", "usual", "usual", "usual"])).tolist()
    [2.0, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816]
    """
    if dataset.labels is None:
        message = f"sample_weight: class weights require labels, and {dataset.name!r} has none."
        raise UsageError(message, kind="missing_labels")
    counts = dataset.labels.bincount()
    return len(dataset.labels) / (counts.count_nonzero() * counts[dataset.labels]).float()


def _perturb_now_or_at_fetch(
    dataset: Dataset, perturb: Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
) -> Dataset:
    """Perturb views now if they are in memory, otherwise at each fetch."""
    store = TransformedStore(dataset.store, perturb)
    if not dataset.is_in_memory:
        return dataset.with_store(store)
    blocks = [store.fetch_views(block) for block in torch.arange(len(dataset)).split(1_000)]  # to bound memory
    return dataset.with_store(ArrayStore(tuple(torch.cat(views) for views in zip(*blocks, strict=True))))


def corrupt_dataset_views(dataset: Dataset, *corruptions: CorruptionSpec) -> Dataset:
    """Corrupt the views of a dataset by noise and image corruptions.

    Images are corrupted as in `corrupt_images`. Noise is added to vectors and time series, in units of the standard
    deviation of each feature or channel in this split.

    Raises:
        UsageError: another corruption than noise for data other than images, or texts.
    """
    kinds = " and ".join(one.kind for one in corruptions)
    texts = [name for name, shape in zip(dataset.view_names, dataset.shapes, strict=True) if shape == TEXT_SHAPE]
    message = (
        f"corrupt: {kinds} requires images, vectors or series, and {dataset.name!r} has texts: {', '.join(texts)}."
    )
    check(not texts, message, "texts")
    images = [len(shape) == 3 for shape in dataset.shapes]
    for kind, _ in corruptions:
        message = f"corrupt: {kind} requires images, and the items of {dataset.name!r} have shapes {dataset.shapes}."
        check(kind == "noise" or all(images), message, "not_images")
    non_image_stds = tuple(
        None if image else torch.tensor(dataset.mean_and_std(view)[1]).view(-1, *[1] * (len(shape) - 1))
        for view, (image, shape) in enumerate(zip(images, dataset.shapes, strict=True))
    )
    seeds = dataset.source_rows
    corrupt = partial(
        _corrupt_views, corruptions=corruptions, noise_seeds_by_position=seeds, non_image_stds=non_image_stds
    )
    return _perturb_now_or_at_fetch(dataset, corrupt)


def _corrupt_views(
    views_at_positions: tuple[Tensor, ...],
    positions: Tensor,
    *,
    corruptions: Sequence[CorruptionSpec],
    noise_seeds_by_position: Tensor,
    non_image_stds: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """Corrupt the views of some items, with noise seeded by item.

    `non_image_stds` holds the standard deviation of each view, or None if the view is an image.
    """
    if not any(one.kind in ("noise", "occlusion") for one in corruptions):  # the others are deterministic
        return tuple(_apply_corruptions(view, corruptions, None) for view in views_at_positions)
    items = []
    with fork_rng_with_lock([]):
        for place, seed in enumerate(noise_seeds_by_position[positions].tolist()):
            # Seeded by item, so that the noise does not depend on the batch.
            seed_torch_generators(derive_torch_seed("data.corruption", seed), "cpu")
            item = (view[place : place + 1] for view in views_at_positions)
            items.append([
                _apply_corruptions(view, corruptions, std) for view, std in zip(item, non_image_stds, strict=True)
            ])  # fmt: skip
    return tuple(torch.cat(view) for view in zip(*items, strict=True))


def _apply_corruptions(view: Tensor, corruptions: Sequence[CorruptionSpec], non_image_std: Tensor | None) -> Tensor:
    """Apply all corruptions, one after another, to one view of some items."""
    for kind, severity in corruptions:
        if non_image_std is not None:
            # The noise of images times 5, in units of the standard deviation of the feature or channel.
            std = 5.0 * _CORRUPTION_STRENGTHS_BY_KIND["noise"][severity - 1] * non_image_std
            view = view + std * torch.randn_like(view)
        else:
            changed = corrupt_images(view, kind, severity)
            view = (changed * 255).round().byte() if view.dtype == torch.uint8 else changed
    return view


def corrupt_images(images: Tensor, kind: str, severity: int) -> Tensor:
    """Corrupt images ``(b, C, H, W)``, and return floats in [0, 1].

    The images are uint8 or floats in [0, 1]. There are six kinds of corruption at five severities. Severity 1 is barely
    visible, 5 leaves the image barely recognizable. Lengths are relative to the side of the image, so that small and
    large images are degraded alike. Random parts (noise, places of squares) are drawn from torch's generator on the
    device of the images.

    Source: after Hendrycks and Dietterich (2019), Benchmarking neural network robustness to common corruptions and
    perturbations.

    Raises:
        UsageError: JPEG with other than 1 or 3 channels.

    >>> corrupt_images(torch.full((1, 1, 8, 8), 0.25), "brightness", 3).unique()
    tensor([0.5500])
    """
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    strength = _CORRUPTION_STRENGTHS_BY_KIND[kind][severity - 1]
    match kind:
        case "noise":
            corrupted = floats + strength * torch.randn_like(floats)
        case "blur":
            sigma = strength * min(floats.shape[2:])
            reach = max(1, round(3 * sigma))
            sizes = [max(1, min(2 * reach + 1, 2 * (side // 2) - 1)) for side in (floats.shape[3], floats.shape[2])]
            corrupted = transforms.gaussian_blur(floats, sizes, [sigma, sigma])
        case "brightness":
            corrupted = floats + strength
        case "contrast":
            mean = floats.mean(dim=(1, 2, 3), keepdim=True)
            corrupted = mean + strength * (floats - mean)
        case "occlusion":
            corrupted = _occlude_random_square(floats, strength)
        case _:
            corrupted = _compress_jpeg(floats, strength)
    return corrupted.clamp(0, 1)


def _occlude_random_square(images: Tensor, area: float) -> Tensor:
    items, _, height, width = images.shape
    spans = []
    for length in (height, width):
        side = max(1, round(length * area**0.5))
        first = torch.randint(length - side + 1, (items, 1), device=images.device)
        places = torch.arange(length, device=images.device)
        spans.append((places >= first) & (places < first + side))
    square = spans[0][:, None, :, None] & spans[1][:, None, None, :]
    return images.where(~square, images.mean(dim=(1, 2, 3), keepdim=True))


def _compress_jpeg(images: Tensor, quality: float) -> Tensor:
    check(images.shape[1] in (1, 3), f"images: JPEG requires 1 or 3 channels, got {images.shape[1]}.", "channels")
    pixels = (images.clamp(0, 1) * 255).round().byte().cpu()
    from torchvision.io import decode_jpeg, encode_jpeg

    compressed = encode_jpeg(list(pixels), quality=int(quality))
    decompressed = torch.stack([decode_jpeg(image) for image in compressed])
    return decompressed.to(images.device).float() / 255


def assign_shifted_domains(dataset: Dataset, shift: DomainShiftSpec) -> Dataset:
    """Assign images to four random domains, and rotate or restyle them by domain.

    One domain is held out on request. With a domain held out, the training items are those of the other domains and the
    test items those of this one.

    Raises:
        UsageError: the data have domains, are no images, or are not square and are to be rotated.
    """
    check(dataset.domains is None, f"domains: {dataset.name!r} has domains of its own.", "conflict")
    message = f"images, and the items of {dataset.name!r} have shapes {dataset.shapes}."
    check(all(len(shape) == 3 for shape in dataset.shapes), f"domains: requires {message}", "not_images")
    rotates = shift.kind == "rotate"
    square = all(shape[1] == shape[2] for shape in dataset.shapes)
    check(not rotates or square, f"domains: rotation requires square {message}", "not_square")
    names = DOMAINS_BY_SHIFT[shift.kind]
    uniform = numpy_generator("data.domains").random(int(dataset.source_rows.max()) + 1)[dataset.source_rows.numpy()]
    domains = torch.from_numpy((uniform * len(names)).astype(np.int64))
    restyle = partial(_rotate_or_restyle_by_domain, domains=domains, rotates=rotates)
    whole = _perturb_now_or_at_fetch(dataset, restyle).replace_fields(domains=domains, domain_names=names)
    if shift.held_out is None:
        return whole
    is_left_out = domains == names.index(shift.held_out)
    chosen = is_left_out if dataset.split == "test" else ~is_left_out
    return whole.subset(chosen.nonzero()[:, 0])


def _rotate_or_restyle_by_domain(
    views: tuple[Tensor, ...], positions: Tensor, *, domains: Tensor, rotates: bool
) -> tuple[Tensor, ...]:
    """Rotate or restyle images, each according to its domain."""
    chosen_domains, shifted = domains[positions], tuple(view.clone() for view in views)
    for view, changed in zip(views, shifted, strict=True):
        for number in chosen_domains.unique().tolist():
            chosen = chosen_domains == number
            part = view[chosen]
            changed[chosen] = torch.rot90(part, number, (2, 3)) if rotates else _restyle(part, number)
    return shifted


def _restyle(images: Tensor, style: int) -> Tensor:
    """Convert images to style 0 (unchanged), 1 (edges), 2 (posterized) or 3 (inverted)."""
    if style == 0:
        return images
    floats = transforms.to_dtype(images, torch.float32, scale=True)
    if style == 1:
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
        flat = floats.flatten(0, 1)[:, None]
        gradient = F.conv2d(F.pad(flat, (1, 1, 1, 1), mode="replicate"), torch.stack([sobel, sobel.T])[:, None])
        changed = gradient.square().sum(dim=1).sqrt().view_as(floats)  # the magnitude of the gradient
    elif style == 2:
        changed = (floats * 3).round() / 3
    else:
        changed = 1 - floats
    restyled: Tensor = transforms.to_dtype(changed.clamp(0, 1), images.dtype, scale=True)
    return restyled
