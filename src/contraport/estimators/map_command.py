"""Implements `contraport map`, which places items in the plane."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import stage_files, write_csv, write_text
from contraport._utils.progress import ProgressBars
from contraport.data import Dataset
from contraport.data.sources.load import load, load_split_or_all_items
from contraport.data.sources.torch_datasets_and_streams import is_stream
from contraport.embedding import LoaderConfig, check_finite_features, extract_item_features, extract_raw_input_features
from contraport.encoders import resolve_view_index
from contraport.errors import UsageError, check, check_new_or_empty_folder, rename_argument, translate_write_errors
from contraport.estimators.command_options import MAP_COMMAND_SPEC, MapOptions
from contraport.estimators.sne import SNE, TSNE
from contraport.evaluation.report_arrays import ArraysByName, collect_label_and_preview_arrays, fixed_random_positions
from contraport.evaluation.split_loading import (
    SplitLoader,
    load_splits,
    resolve_dataset_view_index,
    resolve_device,
)
from contraport.feature_files import Features, as_features, write_features
from contraport.metrics.embedding_geometry import TRUSTWORTHINESS_NEIGHBORS, trustworthiness
from contraport.metrics.retrieval_ranks import nearest_indices
from contraport.plots import embedding as draw_embedding
from contraport.reporting.html_page_parts import PageAssets
from contraport.reporting.page import render_sections
from contraport.reporting.reported_run import ReportedRun, shorten_data_name
from contraport.reporting.sections.embedding_map import build_embedding_map_section
from contraport.runs import Run, WritableRun, as_run_folder
from contraport.seeding import torch_generator
from contraport.training.components.data_builder import build_unaugmented_views

log = logging.getLogger("contraport.estimators")


class Map(NamedTuple):
    """Result of `contraport map`, with coordinates of the items and quality measures.

    Attributes:
        points: coordinates of the items, ``(n, 2)`` float32.
        positions: row of each item in its source, ``(n,)``.
        method: "t-SNE" or "SNE".
        kl_divergence: divergence of the map from the neighbor distribution of the data, nats.
        trustworthiness: about 0.5 for random points, 1 if all neighbors on the map are neighbors in the data; None for
            fewer than 25 items.
        iterations: number of iterations.
        folder: folder of the files, or None.
    """

    points: np.ndarray
    positions: np.ndarray
    method: str
    kl_divergence: float
    trustworthiness: float | None
    iterations: int
    folder: Path | None

    def __str__(self) -> str:
        trust = "" if self.trustworthiness is None else f", trustworthiness {self.trustworthiness:.3f}"
        quality = f"KL divergence {self.kl_divergence:.3f} nats{trust}"
        return f"{self.method} of {len(self.points):,} items after {self.iterations:,} iterations: {quality}"


@MAP_COMMAND_SPEC.with_option_parameters
def map(arguments: dict[str, Any]) -> Map:
    """Map items to the plane by t-SNE or SNE.

    Raises:
        UsageError: an invalid argument, data without four different items, or fewer items than the perplexity needs.

    >>> features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    >>> map(features, perplexity=5, iterations=50).points.shape
    (40, 2)
    """
    options = MapOptions(**arguments)
    if options.out is not None:
        check_new_or_empty_folder("out", Path(options.out))
    device, bars = resolve_device(options.device), ProgressBars(shown=options.progress)
    with rename_argument("source", "features", "data"):
        features, dataset = _load_or_embed_items(options, LoaderConfig(device=device, bars=bars))
        rows = torch.from_numpy(np.array(features.features, dtype=np.float32))
        check_finite_features(rows)
    # A perplexity is at least 1 and below the number of other items.
    check(len(rows) >= 4, f"source: must have at least 4 items, got {len(rows)}.", "too_few")
    check(bool((rows != rows[0]).any()), f"source: all {len(rows)} items are equal.", "constant")
    build, title = (TSNE, "t-SNE") if options.method == "tsne" else (SNE, "SNE")
    estimator = build(
        perplexity=options.perplexity,
        init="pca" if rows.shape[1] > 1 else "random",
        max_iter=options.iterations,
        random_state=options.seed,
        device=str(device),
        method="exact" if options.exact else "auto",
    )
    estimator._progress_bars = bars
    with bars.open_step_bar(None):  # so that the bars of the steps share a display
        points = estimator.fit_transform(rows)
    trust = trustworthiness(rows, torch.from_numpy(points)) if len(rows) > 2 * TRUSTWORTHINESS_NEIGHBORS else None
    result = Map(
        points,
        features.source_rows,
        title,
        estimator.kl_divergence_,
        trust,
        estimator.n_iter_,
        None if options.out is None else Path(options.out),
    )
    if result.folder is not None:
        with translate_write_errors("out", result.folder), stage_files(result.folder) as folder:
            _write_map_files(folder, result, features, dataset)
    return result


def _load_or_embed_items(options: MapOptions, loader_config: LoaderConfig) -> tuple[Features, Dataset | None]:
    """Load or embed the items to map, and return their features and dataset, if any."""
    source = options.source
    if isinstance(source, Run) or (isinstance(source, str | Path) and (Path(source) / "config.yaml").is_file()):
        return _embed_run_items(as_run_folder(source), options, loader_config)
    features = _features_of_array_or_file_or_none(source)
    if features is None:  # data, whose features are the raw inputs, such as pixels
        split = options.split
        columns = options.columns
        if split is None:
            dataset = load_split_or_all_items(source, columns=columns)
        else:
            dataset = load(source, split, columns=columns)
        if options.view is not None:
            view = resolve_view_index("view", options.view, dataset.view_names, dataset.shapes)
            dataset = dataset.select_views([view])
        dataset = dataset.subset(_choose_item_indices(len(dataset), options))
        return _build_features(dataset, extract_raw_input_features(dataset, loader_config), None), dataset
    message = "has no effect on features, all of which are mapped; give a run, or embed what you want to map."
    for name in ("split", "view", "columns"):
        check(getattr(options, name) is None, f"{name}: {message}", "conflict")
    return features.take(_choose_item_indices(len(features), options).numpy()), None


def _features_of_array_or_file_or_none(source: Any) -> Features | None:
    """Return the features in an array or file, or None for other sources."""
    if isinstance(source, torch.utils.data.Dataset) or is_stream(source):
        return None
    if isinstance(source, str | Path) and Path(source).suffix not in (".npz", ".npy", ".parquet"):
        return None
    try:
        return as_features(source)
    except UsageError as error:
        if isinstance(source, str | Path) and error.code in ("features.no_features", "features.invalid"):
            return None
        raise


def _embed_run_items(run: WritableRun, options: MapOptions, loader_config: LoaderConfig) -> tuple[Features, Dataset]:
    """Embed the map's items, from one split of a run's data, with the run's encoder."""
    settings, whole = run.settings(), run.model(trust_remote_code=options.trust_remote_code)
    model = whole if options.view is None else whole.to_single_view(options.view)
    splits = load_splits(run, SplitLoader(settings, model, options.columns), None, drop_trained_items=False)
    dataset = splits.train if options.split == "train" else splits.test
    if options.view is not None:
        dataset = dataset.select_views([resolve_dataset_view_index(dataset, whole, options.view)]).drop_duplicates()
    dataset = dataset.subset(_choose_item_indices(len(dataset), options))
    features = extract_item_features(model, dataset, build_unaugmented_views(settings, dataset), loader_config)
    return _build_features(dataset, features, str(run.path)), dataset


def _choose_item_indices(num_items: int, options: MapOptions) -> Tensor:
    """Choose sorted indices of all items or of a random sample."""
    if num_items <= options.max_items:
        return torch.arange(num_items)
    log.info("Mapping %s of %s items, chosen at random; max_items sets the number.", options.max_items, num_items)
    generator = torch_generator("estimators.map", options.seed, num_items)
    return torch.randperm(num_items, generator=generator)[: options.max_items].sort().values


def _build_features(dataset: Dataset, features: Tensor, run: str | None) -> Features:
    """Build `Features` from a dataset's feature matrix and item metadata."""
    names = dataset.class_names if dataset.labels is not None else None
    return Features(
        features.cpu().numpy(),
        dataset.source_rows.numpy(),
        np.full(len(dataset), dataset.split),
        None if dataset.keys is None else np.array(dataset.keys, dtype=np.str_),
        None if dataset.labels is None else dataset.labels.numpy(),
        None if names is None else np.array(names, dtype=np.str_),
        run,
        data_name=dataset.name,
    )


def _write_map_files(folder: Path, result: Map, features: Features, dataset: Dataset | None) -> None:
    """Write the map of items as `.npz`, `.csv`, `.png` and `.html` files."""
    mapped = replace(features, features=result.points, run=None, view=None)
    write_features(folder / "map.npz", mapped)
    rows = (
        (position, int(row), features.item_name(position), features.class_name_at(position) or "", *map_point)
        for position, (row, map_point) in enumerate(zip(features.source_rows, result.points.tolist(), strict=True))
    )
    write_csv(folder / "map.csv", ["position", "row", "name", "class", "x", "y"], rows)
    class_names = None
    if features.labels is not None and features.class_names is not None:
        class_names = [str(features.class_names[label]) for label in np.unique(features.labels)]
    figure = draw_embedding(result.points, features.labels, class_names=class_names, width=5.0)
    figure.savefig(folder / "map.png", dpi=200)
    write_text(folder / "map.html", _render_map_page(result, features, dataset))


def _render_map_page(result: Map, features: Features, dataset: Dataset | None) -> str:
    """Render an HTML page with only the map section of a report."""
    chosen = fixed_random_positions(len(result.points), 2_000)  # pictures of more would make the page too large
    rows = torch.from_numpy(np.array(features.features, dtype=np.float32))[chosen]
    arrays: ArraysByName = {"neighbors": nearest_indices(rows, min(TRUSTWORTHINESS_NEIGHBORS, len(rows) - 1)).numpy()}
    if dataset is not None:
        arrays |= collect_label_and_preview_arrays(dataset, chosen)
    elif features.labels is not None:
        arrays["labels"] = features.labels[chosen]
        if features.class_names is not None:
            arrays["class_names"] = features.class_names
    if features.keys is not None and "texts" not in arrays:
        arrays["texts"] = features.keys[chosen]
    arrays |= {
        "points": result.points[chosen],
        "ids": features.source_rows[chosen],
        "projection": np.array(result.method),
    }
    name = shorten_data_name(features.data_name or "features")
    shown = ReportedRun(name, "", 0, "", {"data": name}, [], {}, arrays, {})
    assets = PageAssets([shown])
    lead = f"{result}. Hover over a point to see the item; click it for its nearest neighbors."
    section = build_embedding_map_section(assets, noun="item", lead=lead)
    assert section is not None
    return render_sections(assets, [section], f"{result.method} map of {name}")
