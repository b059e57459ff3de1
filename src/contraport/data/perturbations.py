"""Data made worse or more varied than they are, always alike: mismatched pairs, rare classes, corruptions, domains.

What becomes of an item depends on its number in its source alone, that of mismatched pairs on a seed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.text_tensors import is_text_shape
from contraport.catalog.perturbation_specs import DOMAINS, Corruption, DomainSpec, Mismatch
from contraport.data.arrays import ArrayStore
from contraport.data.corruptions import NOISE, corrupt
from contraport.data.dataset import Batch, Dataset
from contraport.data.duplicate_groups import exchange_partners
from contraport.data.stores import StoreWrapper
from contraport.errors import UsageError, check
from contraport.seeding import generator, seed_global_generators, torch_seed

Change = Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
"""Of the views of the items at some positions makes others."""

_RANDOM = ("noise", "occlusion")
_NOISE_OF_VECTORS = 5.0
"""Of vectors and series the deviation of the noise is that of images, so many times, in units of their own."""

_BLOCK = 1_000


class Mismatched(Dataset):
    """A dataset of one given view, whose batches have two: each item, and the one that it is paired with.

    Random views of it are the first of an item and the others of its partner; see `contraport.data.Views`.

    Attributes:
        partners: which item each is paired with, int64 ``(n,)``.
    """

    paired = True
    partners: Tensor

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items at some positions, and their partners, as one batch."""
        batch = super().__getitems__(positions)
        return batch._replace(views=(*batch.views, *self.store.fetch(self.partners[batch.ids])))


@dataclass(frozen=True)
class MismatchedStore(StoreWrapper):
    """The items of another store, of which all views but the first are those of a partner."""

    partners: Tensor

    @property
    def digests(self) -> Tensor | None:
        digests = self.store.digests
        return None if digests is None else torch.cat([digests[:, :1], digests[self.partners, 1:]], dim=1)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        first, *_ = self.store.fetch(positions)
        _, *others = self.store.fetch(self.partners[positions])
        return first, *others


def mismatched_partners(dataset: Dataset, mismatch: Mismatch, *, seed: int) -> Tensor:
    """Return which item each is paired with, int64 ``(n,)``: a share of them, drawn at random, exchange partners.

    Items that exchange partners differ in the content of each view.

    Raises:
        UsageError: partners are to be exchanged within classes, and there are none.
    """
    check(
        not mismatch.likely or dataset.labels is not None,
        f"mismatch: partners of the same class need labels, and {dataset.name!r} has none.",
    )
    partners, random = torch.arange(len(dataset)), generator("data.mismatch", seed)
    groups = dataset.labels if mismatch.likely else torch.zeros(len(dataset), dtype=torch.int64)
    assert groups is not None
    for group in groups.unique():
        members = (groups == group).nonzero()[:, 0]
        number = round(mismatch.share * len(members))
        if number > 1:  # one alone has nobody to exchange with
            chosen = members[torch.from_numpy(random.permutation(len(members))[:number])]
            partners[chosen] = exchange_partners(chosen, dataset.content_ids, random)
    return partners


def imbalanced(dataset: Dataset, ratio: float) -> Dataset:
    """Return fewer items of later classes, always the same ones: each class at most a constant share of the one before.

    The first may have as many as the largest class has, the last a `ratio`-th of that, at least one.

    Source: the long-tailed versions of benchmark data, Cui et al. (2019), Class-balanced loss, section 5.

    Raises:
        UsageError: there are no classes, or only one.

    >>> from contraport.data import from_arrays
    >>> even = from_arrays(np.ones((30, 2)), labels=[0, 1, 2] * 10)
    >>> imbalanced(even, 9.0).labels.bincount().tolist()
    [10, 3, 1]
    """
    labels = dataset.labels
    if labels is None or len(counts := labels.bincount()) < 2:
        raise UsageError(f"imbalance: expected items of at least two classes, {dataset.name!r} has none or one.")
    shares = ratio ** -(torch.arange(len(counts)) / (len(counts) - 1))
    allowed = (counts.max() * shares).round().clamp(min=1)
    shuffled = torch.from_numpy(generator("data.imbalance").permutation(len(labels)))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]  # within its class
    return dataset.only(by_class[place < allowed[labels[by_class]]].sort().values)


def class_weights(dataset: Dataset) -> Tensor:
    """Return weights of mean 1 that give each class that has items the same sum, float32 ``(n,)``.

    Raises:
        UsageError: there are no classes.

    >>> from contraport.data import from_arrays
    >>> class_weights(from_arrays(np.ones((4, 2)), labels=["rare", "usual", "usual", "usual"])).tolist()
    [2.0, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816]
    """
    if dataset.labels is None:
        raise UsageError(f"sample_weight: those of classes need labels, and {dataset.name!r} has none.")
    counts = dataset.labels.bincount()
    return len(dataset.labels) / (counts.count_nonzero() * counts[dataset.labels]).float()


def with_partners(dataset: Dataset, partners: Tensor) -> Dataset:
    """Return the same items, each paired with its partner: of several given views, those after the first are its.

    Raises:
        UsageError: items lack a view.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((np.arange(4.0)[:, None], np.arange(4.0)[:, None]))
    >>> with_partners(pairs, torch.tensor([0, 2, 1, 3])).__getitems__([0, 1]).views[1].flatten().tolist()
    [0.0, 2.0]
    """
    check(dataset.present is None, f"mismatch: expected all views of all items, some of {dataset.name!r} lack one.")
    if len(dataset.shapes) > 1:
        return dataset.with_store(MismatchedStore(dataset.store, partners), keep_digests=False)
    paired = dataset.as_subclass(Mismatched)
    paired.partners = partners
    return paired


@dataclass(frozen=True)
class ChangedStore(StoreWrapper):
    """Another store's items, each changed when it is fetched."""

    change: Change

    @property
    def in_memory(self) -> bool:
        return False

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.change(self.store.fetch(positions), positions)


def _changed(dataset: Dataset, change: Change) -> Dataset:
    """Return the items changed, at once where they lie in memory."""
    store = ChangedStore(dataset.store, change)
    if not dataset.in_memory:
        return dataset.with_store(store)
    blocks = [store.fetch(block) for block in torch.arange(len(dataset)).split(_BLOCK)]
    return dataset.with_store(ArrayStore(tuple(torch.cat(views) for views in zip(*blocks, strict=True))))


def corrupted(dataset: Dataset, *corruptions: Corruption) -> Dataset:
    """Return the items made worse, by one corruption after the other; the same items always alike.

    Images are corrupted as `contraport.data.corruptions` says; to vectors and time series noise is added, of a standard
    deviation in units of their own, those of this split.

    Raises:
        UsageError: another corruption than noise of what is no image, or one of texts.
    """
    kinds = " and ".join(one.kind for one in corruptions)
    texts = [name for name, shape in zip(dataset.view_names, dataset.shapes, strict=True) if is_text_shape(shape)]
    told = f"corrupt: {kinds} is for images, vectors and series; {dataset.name!r} has texts: {', '.join(texts)}."
    check(not texts, told)
    images = [len(shape) == 3 for shape in dataset.shapes]
    for kind, _ in corruptions:
        check(kind == "noise" or all(images), f"corrupt: {kind} is for images, {dataset.name!r} has {dataset.shapes}.")
    spread = tuple(
        None if image else torch.tensor(dataset.statistics(view)[1]).view(-1, *[1] * (len(shape) - 1))
        for view, (image, shape) in enumerate(zip(images, dataset.shapes, strict=True))
    )
    return _changed(dataset, _Corrupting(corruptions, dataset.rows, spread))


@dataclass(frozen=True)
class _Corrupting:
    """Makes items worse: those of some rows of their source, whose views are images or are spread so far."""

    corruptions: tuple[Corruption, ...]
    rows: Tensor
    spread: tuple[Tensor | None, ...]

    def __call__(self, views: tuple[Tensor, ...], positions: Tensor) -> tuple[Tensor, ...]:
        if not any(one.kind in _RANDOM for one in self.corruptions):
            return tuple(self._worse(view, None) for view in views)
        items = []
        with torch.random.fork_rng(devices=[]):
            for place, row in enumerate(self.rows[positions].tolist()):
                seed_global_generators(torch_seed("data.corruption", row))
                of_item = (view[place : place + 1] for view in views)
                items.append([self._worse(view, spread) for view, spread in zip(of_item, self.spread, strict=True)])
        return tuple(torch.cat(view) for view in zip(*items, strict=True))

    def _worse(self, view: Tensor, spread: Tensor | None) -> Tensor:
        for kind, severity in self.corruptions:
            if spread is not None:
                view = view + _NOISE_OF_VECTORS * NOISE[severity - 1] * spread * torch.randn_like(view)
            else:
                changed = corrupt(view, kind, severity)
                view = (changed * 255).round().byte() if view.dtype == torch.uint8 else changed
        return view


def assign_domains(dataset: Dataset, version: DomainSpec) -> Dataset:
    """Return images dealt to four domains at random, and changed so.

    With a domain left out the training items are those of the others, and the test items those of this one.

    Raises:
        UsageError: the data have domains, or are no square images where they are to be turned.
    """
    check(dataset.domains is None, f"domains: {dataset.name!r} has domains of its own.")
    images = all(len(shape) == 3 for shape in dataset.shapes)
    check(images, f"domains: expected images, {dataset.name!r} has {dataset.shapes}.")
    turned = version.name == "rotate"
    square = all(shape[1] == shape[2] for shape in dataset.shapes)
    check(not turned or square, f"domains: expected square images to turn, {dataset.name!r} has {dataset.shapes}.")
    names = DOMAINS[version.name]
    drawn = generator("data.domains").random(int(dataset.rows.max()) + 1)[dataset.rows.numpy()]
    domains = torch.from_numpy((drawn * len(names)).astype(np.int64))

    whole = _changed(dataset, _Styling(domains, turned)).with_domains(domains, names)
    if version.left_out is None:
        return whole
    is_left_out = domains == names.index(version.left_out)
    chosen = is_left_out if dataset.split == "test" else ~is_left_out
    return whole.only(chosen.nonzero()[:, 0])


@dataclass(frozen=True)
class _Styling:
    """Changes images as their domains say."""

    domains: Tensor
    turned: bool

    def __call__(self, views: tuple[Tensor, ...], positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._changed(view, self.domains[positions]) for view in views)

    def _changed(self, images: Tensor, domains: Tensor) -> Tensor:
        changed = images.clone()
        for number in domains.unique().tolist():
            chosen = domains == number
            of_domain = images[chosen]
            changed[chosen] = torch.rot90(of_domain, number, (2, 3)) if self.turned else _STYLES[number](of_domain)
        return changed


def _whole(images: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function of floats in [0, 1] makes of images of any kind."""
    floats = function(transforms.to_dtype(images, torch.float32, scale=True)).clamp(0, 1)
    changed: Tensor = transforms.to_dtype(floats, images.dtype, scale=True)
    return changed


def _edges(images: Tensor) -> Tensor:
    """Return the length of the gradient, by Sobel's operator, of each channel."""
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
    flat = images.flatten(0, 1)[:, None]
    along = F.conv2d(F.pad(flat, (1, 1, 1, 1), mode="replicate"), torch.stack([sobel, sobel.T])[:, None])
    return along.square().sum(dim=1).sqrt().view_as(images)


_STYLES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda images: images,
    lambda images: _whole(images, _edges),
    lambda images: _whole(images, lambda floats: (floats * 3).round() / 3),
    lambda images: _whole(images, lambda floats: 1 - floats),
)
"""In the order of the names in the catalog."""
