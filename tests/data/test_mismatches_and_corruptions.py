"""Perturbations of data: mismatched pairs, class imbalance, corruptions and domain shifts."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.catalog.data_option_parsers import (
    DOMAINS_BY_SHIFT,
    CorruptionSpec,
    DomainShiftSpec,
    MismatchSpec,
    parse_corruptions,
    parse_domain_shift,
    parse_largest_to_smallest_class_ratio,
    parse_mismatch,
)
from contraport.data import Dataset, Views, from_arrays
from contraport.data.mismatches_and_corruptions import (
    assign_shifted_domains,
    class_balanced_sample_weights,
    corrupt_dataset_views,
    draw_mismatched_partners,
    make_imbalanced,
    replace_views_after_first,
)
from contraport.data.stores import SubsetStore


def pictures(items: int = 40, *, side: int = 8) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (items, side, side), dtype=np.uint8)
    return from_arrays(pixels, np.arange(items) % 4)


def all_items_of(dataset: Dataset) -> torch.Tensor:
    return dataset.__getitems__(list(range(len(dataset)))).views[0]


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_mismatch_fraction_of_pairs_exchanges_partners(share: float, by_class: bool) -> None:
    dataset = pictures()
    assert dataset.labels is not None
    partners = draw_mismatched_partners(dataset, MismatchSpec(share, by_class), seed=3)
    assert sorted(partners.tolist()) == list(range(40))
    expected = 4 * round(share * 10) if by_class else round(share * 40)
    assert int((partners != torch.arange(40)).sum()) == expected
    if by_class:
        assert torch.equal(dataset.labels[partners], dataset.labels)


def test_partners_depend_on_the_seed() -> None:
    one, again, other = (draw_mismatched_partners(pictures(), MismatchSpec(0.5), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_partners_of_a_class_need_labels() -> None:
    with raises_usage_error("mismatch.missing_labels"):
        draw_mismatched_partners(from_arrays(np.ones((4, 2))), MismatchSpec(0.5, within_class=True), seed=0)


def test_partners_replace_all_views_but_the_first() -> None:
    values = np.arange(6.0)[:, None]
    dataset = from_arrays((values, values, values))
    partners = torch.tensor([1, 0, 2, 4, 3, 5])
    first, *others = replace_views_after_first(dataset, partners).__getitems__([0, 3, 5]).views
    assert first.flatten().tolist() == [0, 3, 5]
    assert [view.flatten().tolist() for view in others] == [[1, 4, 5]] * 2


def test_partners_replace_the_second_random_view() -> None:
    dataset = pictures()
    partners = torch.arange(40).roll(1)
    paired = replace_views_after_first(dataset, partners)
    views = Views(paired, augment="none")
    first, second = views(paired.__getitems__([0, 7]).views)
    clean = all_items_of(dataset).float() / 255
    assert torch.equal(first, clean[[0, 7]])
    assert torch.equal(second, clean[partners[[0, 7]]])
    assert len(views.unaugmented_shapes) == 1
    with raises_usage_error("views.mismatched", "2+3"):
        Views(paired, views="2+3")


@pytest.mark.parametrize(
    ("sizes", "ratio", "expected"),
    [
        ([100, 100, 100], 100.0, [100, 10, 1]),
        ([20, 20, 20, 20], 8.0, [20, 10, 5, 2]),  # 2.5 rounds to even
        ([5, 40, 3], 16.0, [5, 10, 2]),  # relative to the largest class; no class grows
        ([4, 4], 400.0, [4, 1]),
        ([6, 6], 1.0, [6, 6]),
    ],
)
def test_the_sizes_of_classes_fall_by_a_constant_factor(sizes: list[int], ratio: float, expected: list[int]) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    dataset = from_arrays(np.arange(float(len(labels)))[:, None], labels)
    few = make_imbalanced(dataset, ratio)
    assert few.labels is not None
    assert few.labels.bincount(minlength=len(sizes)).tolist() == expected
    remaining = all_items_of(few)[:, 0].long()
    assert remaining.tolist() == few.source_rows.tolist() == sorted(remaining.tolist())
    assert torch.equal(torch.from_numpy(labels)[remaining], few.labels)
    assert torch.equal(make_imbalanced(dataset, ratio).source_rows, few.source_rows)


def test_class_weights_are_balanced() -> None:
    labels = np.array(["b", "a", "b", "b", "b", "c"])
    weights = class_balanced_sample_weights(from_arrays(np.ones((6, 2)), labels))
    assert weights.tolist() == pytest.approx([0.5, 2, 0.5, 0.5, 0.5, 2])


@pytest.mark.parametrize(
    ("perturb", "code_and_values"),
    [
        (
            lambda data: make_imbalanced(data, 10.0),
            ("imbalance.missing_labels", "arrays"),
        ),
        (class_balanced_sample_weights, ("sample_weight.missing_labels", "arrays")),
    ],
)
def test_rejects_perturbations_without_classes(
    perturb: Callable[[Dataset], object], code_and_values: tuple[str, ...]
) -> None:
    with raises_usage_error(*code_and_values):
        perturb(from_arrays(np.ones((4, 2))))


def test_corruptions_are_applied_in_order() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    both = all_items_of(corrupt_dataset_views(from_arrays(images), *parse_corruptions("noise:3,blur:2")))
    noisy = corrupt_dataset_views(from_arrays(images), CorruptionSpec("noise", 3))
    assert torch.equal(both, all_items_of(corrupt_dataset_views(noisy, CorruptionSpec("blur", 2))))
    assert not torch.equal(
        both, all_items_of(corrupt_dataset_views(from_arrays(images), *parse_corruptions("blur:2,noise:3")))
    )
    series = np.random.default_rng(0).normal(size=(9, 2, 16)).astype(np.float32)
    with raises_usage_error("corrupt.not_images"):
        corrupt_dataset_views(from_arrays(series), *parse_corruptions("noise:3,blur:2"))


@pytest.mark.parametrize("kind", ["noise", "occlusion", "blur", "jpeg"])
def test_corruption_does_not_depend_on_position(kind: str) -> None:
    dataset, positions = pictures(side=32), torch.tensor([5, 2, 31])
    all_items, subset = (
        corrupt_dataset_views(source, CorruptionSpec(kind, 3)) for source in (dataset, dataset.subset(positions))
    )
    assert all_items_of(all_items).dtype == torch.uint8
    assert (
        all_items_of(all_items)[positions].int() - all_items_of(subset).int()
    ).abs().max() <= 1  # sums in another order have other rounding errors
    assert not torch.equal(all_items_of(all_items), all_items_of(dataset))


def test_bytes_are_rounded() -> None:
    """At half the contrast black and white become 63.75 and 191.25 of 255."""
    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(3, 1, 2, 2)
    half = all_items_of(corrupt_dataset_views(from_arrays(images), CorruptionSpec("contrast", 2)))
    assert half[0, 0].tolist() == [[64, 191], [64, 191]]


def test_noise_of_vectors_is_in_units_of_their_deviation() -> None:
    wide = np.random.default_rng(0).normal(size=(3_000, 2)) * [1.0, 100.0]
    noise = (
        all_items_of(corrupt_dataset_views(from_arrays(wide), CorruptionSpec("noise", 1)))
        - torch.from_numpy(wide).float()
    )
    assert noise.std(dim=0).numpy() == pytest.approx(0.2 * wide.std(axis=0), rel=0.05)
    with raises_usage_error("corrupt.not_images"):
        corrupt_dataset_views(from_arrays(wide), CorruptionSpec("blur", 1))
    captioned = from_arrays({"sound": wide[:2], "caption": ["a bell", "a horn"]})
    with raises_usage_error("corrupt.texts"):
        corrupt_dataset_views(captioned, CorruptionSpec("noise", 1))


class StoreOnDisk(SubsetStore):
    is_in_memory = False


def test_lazy_items_are_transformed_on_fetch_and_pickled() -> None:
    dataset = pictures()
    lazy = dataset.with_store(StoreOnDisk(dataset.store, torch.arange(40)))
    for change in (
        lambda source: corrupt_dataset_views(source, CorruptionSpec("noise", 2)),
        lambda source: assign_shifted_domains(source, DomainShiftSpec("style")),
    ):
        assert torch.equal(all_items_of(change(lazy)), all_items_of(change(dataset)))
        positions = [31, 4, 17, 5]
        assert torch.equal(change(lazy).__getitems__(positions).views[0], all_items_of(change(dataset))[positions])
        assert pickle.dumps(change(lazy).store)


@pytest.mark.parametrize("name", DOMAINS_BY_SHIFT)
def test_domain_shift_has_four_domains_of_images(name: str) -> None:
    dataset = pictures(200)
    shifted = assign_shifted_domains(dataset, DomainShiftSpec(name))
    assert shifted.domain_names == DOMAINS_BY_SHIFT[name]
    assert shifted.domains is not None
    assert shifted.domains.bincount().min() > 30
    same = (all_items_of(shifted) == all_items_of(dataset)).flatten(1).all(dim=1)
    assert torch.equal(same, shifted.domains == 0)


@pytest.mark.parametrize("name", DOMAINS_BY_SHIFT)
def test_domain_does_not_depend_on_position(name: str) -> None:
    dataset, positions = pictures(60), torch.tensor([41, 7, 30])
    all_items, subset = (
        assign_shifted_domains(source, DomainShiftSpec(name)) for source in (dataset, dataset.subset(positions))
    )
    assert all_items.domains is not None
    assert torch.equal(subset.domains, all_items.domains[positions])
    assert torch.equal(all_items_of(subset), all_items_of(all_items)[positions])


def test_domains_are_rotations_and_named_filters() -> None:
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    images[:, :, :4] = 40  # the upper half is dark grey, the lower black
    turned, styled = (
        assign_shifted_domains(from_arrays(images), DomainShiftSpec(name)) for name in ("rotate", "style")
    )
    assert turned.domains is not None
    assert styled.domains is not None
    for quarter, name in enumerate(("upright", "quarter", "half", "three-quarters")):
        (rotated,) = all_items_of(turned)[turned.domains == quarter].unique(dim=0)
        assert torch.equal(rotated, torch.rot90(images[0], quarter, (1, 2))), name
    photo, edges, poster, inverted = (
        all_items_of(styled)[styled.domains == number].unique(dim=0)[0, 0] for number in range(4)
    )
    assert photo.unique().tolist() == [0, 40]
    assert poster.unique().tolist() == [0], "expected the nearest of four grey levels"
    assert inverted.unique().tolist() == [215, 255]
    assert edges[:, 0].tolist() == [0, 0, 0, 40, 40, 0, 0, 0], "expected an edge of the height of the step"
    assert torch.equal(edges, edges[:, :1].expand(8, 8))


def test_excluded_domain_is_only_in_the_test_split() -> None:
    train = pictures(100)
    test = train.subset(torch.arange(100), "test")
    remaining, excluded = (
        assign_shifted_domains(source, DomainShiftSpec("style", "inverted")) for source in (train, test)
    )
    assert remaining.domains is not None
    assert excluded.domains is not None
    assert set(remaining.domains.tolist()) == {0, 1, 2}
    assert set(excluded.domains.tolist()) == {3}
    assert torch.equal(all_items_of(excluded), 255 - all_items_of(test)[excluded.source_rows])
    assert len(remaining) + len(excluded) == 100


def test_data_with_domains_keep_them() -> None:
    dataset = from_arrays(np.zeros((4, 8, 8), np.uint8), domains=[0, 0, 1, 1])
    with raises_usage_error("domains.conflict", "arrays"):
        assign_shifted_domains(dataset, DomainShiftSpec("rotate"))


@pytest.mark.parametrize(
    ("parse", "text", "code_and_values"),
    [
        (parse_mismatch, 1.5, ("mismatch.invalid", "0.2")),
        (parse_mismatch, "0.2:item", ("mismatch.invalid", "0.2")),
        (parse_mismatch, True, ("mismatch.invalid", "1")),
        (parse_largest_to_smallest_class_ratio, 0.5, ("imbalance.invalid", "100", "0.5")),
        (parse_largest_to_smallest_class_ratio, "many", ("imbalance.invalid", "100", "many")),
        (parse_largest_to_smallest_class_ratio, "inf", ("imbalance.invalid", "inf")),
        (parse_largest_to_smallest_class_ratio, True, ("imbalance.invalid", "1")),
        (parse_corruptions, "noise:3,noise:2", ("corrupt.duplicate", "noise:3,noise:2")),
        (parse_corruptions, "nois", ("corrupt.unknown", "nois", "noise")),
        (parse_corruptions, "noise:6", ("corrupt.severity", "noise:6")),
        (parse_domain_shift, "styles", ("domains.unknown", "styles", "style")),
        (parse_domain_shift, "style:edge", ("domains.unknown", "edge", "edges")),
    ],
)
def test_rejects_invalid_perturbations(parse: object, text: object, code_and_values: tuple[str, ...]) -> None:
    with raises_usage_error(*code_and_values):
        parse(text)  # type: ignore[operator]
