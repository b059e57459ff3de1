"""Arrays of `samples.npz` for the report page, mostly of test items."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport._utils.text_bytes import TEXT_SHAPE, tensor_to_texts
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import MIN_PAIRS, PairedFeatures
from contraport.data import Dataset, Views
from contraport.data.item_previews import make_item_previews_per_view, shrink_to_uint8_nchw
from contraport.data.mismatches_and_corruptions import replace_views_after_first
from contraport.embedding import LoaderConfig, embed_views, fixed_seed, inference_mode
from contraport.encoders import Model
from contraport.engine import normalize
from contraport.errors import UsageError
from contraport.metrics.embedding_geometry import centered_singular_values
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.probes import confusion_matrix
from contraport.metrics.retrieval_ranks import nearest_indices
from contraport.objectives import Loss
from contraport.runs import WritableRun
from contraport.seeding import torch_generator

PLOTTED_THUMBNAIL_SIDE_PIXELS = 32
"""Width and height of the thumbnail of a point or of a view in a plan."""

MAX_SAVED_WORST_ITEMS = 10
"""Maximum number of worst pairs, and of misclassified items, that are saved."""

LISTED_THUMBNAIL_SIDE_PIXELS = 64
"""Width and height of the thumbnail of a listed item."""

ArraysByName = dict[str, np.ndarray[Any, Any]]
"""Arrays of `samples.npz` by name."""


def collect_test_figure_arrays(context: EvalContext, *, has_probe: bool) -> ArraysByName:
    """Return 2-D points, cosines, losses and mismatch scores of test items."""
    test, positions = context.test, fixed_random_positions(len(context.test), 1_000)
    arrays = collect_feature_plot_arrays(test, context.test_features, positions) | collect_cosine_matrix_and_labels(
        test, context.test_features
    )
    arrays |= _compute_item_loss_arrays(context, positions)
    if len(test.shapes) == 2 and len(positions) >= MIN_PAIRS and context.has_comparable_views:
        is_shared = context.has_shared_encoder
        views = context.test_random_view_features if is_shared else context.test_random_view_projector_outputs
        agreement = score_pairs(PairedFeatures((views[0][positions], views[1][positions])))
        # The share of items at least as near to one view as the partners of the other view's neighbors: from 0 to 1,
        # above 1/3 for unrelated views.
        arrays["suspicion"] = (-agreement).exp().cpu().numpy()
    if has_probe:
        arrays["confusion"] = confusion_matrix(context.fitted_probe, context.test_features, context.test_labels)
    return arrays


def collect_feature_plot_arrays(dataset: Dataset, features: Tensor, positions: Tensor) -> ArraysByName:
    """Return arrays for plots of items at `positions`, and the spectrum of all features."""
    chosen = features[positions]
    points, method = project_to_2d_with_method(chosen)
    return {
        "points": points,
        "projection": np.array(method),
        "ids": positions.numpy(),
        "spectrum": centered_singular_values(features).numpy(),
        "neighbors": nearest_indices(chosen, min(12, len(positions) - 1)).numpy(),
        **collect_label_and_preview_arrays(dataset, positions),
    }


def collect_label_and_preview_arrays(dataset: Dataset, positions: Tensor) -> ArraysByName:
    """Return labels, domains, thumbnails and texts of the items at `positions`, ``(m,)``."""
    arrays: ArraysByName = {}
    if dataset.labels is not None:
        arrays["labels"] = dataset.labels[positions].numpy()
    if dataset.class_names is not None:
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if dataset.domains is not None and dataset.domain_names is not None:
        arrays["domains"] = dataset.domains[positions].numpy()
        arrays["domain_names"] = np.array(dataset.domain_names, dtype=np.str_)
    views = dataset.__getitems__(positions.tolist()).views
    if dataset.is_first_view_image:
        arrays["thumbnails"] = shrink_to_uint8_nchw(views[0], PLOTTED_THUMBNAIL_SIDE_PIXELS)
    text = next((view for view, shape in zip(views, dataset.shapes, strict=True) if shape == TEXT_SHAPE), None)
    if text is not None:
        arrays["texts"] = np.array([words[:160] for words in tensor_to_texts(text)], dtype=np.str_)
    return arrays


def collect_cosine_matrix_and_labels(dataset: Dataset, features: Tensor) -> ArraysByName:
    """Return pairwise cosines and labels of sampled items, sorted by label."""
    positions = random_positions_sorted_by_label(dataset, 160)
    z = normalize(features[positions])
    arrays: ArraysByName = {"cosines": (z @ z.T).numpy()}
    if dataset.labels is not None:
        arrays["cosine_labels"] = dataset.labels[positions].numpy()
    return arrays


def _compute_item_loss_arrays(context: EvalContext, positions: Tensor) -> ArraysByName:
    """Compute the loss of each item at `positions`, in one batch."""
    objective, model = context.objective, context.encoder
    if not isinstance(objective, Loss) or not isinstance(model, Model) or not objective.compares_items:
        return {}
    items = context.test.subset(positions)
    try:
        views = embed_views(model, items, context.views, context.loader_config, context.name, project=True)
        with torch.no_grad():
            options = objective.without_unread_labels({"labels": items.labels, "domains": items.domains})
            values = objective(*views, **options, reduction="none")
    except UsageError:  # it needs a fact that test items lack, or has no values per row
        return {}
    return {"losses": values.float().reshape(-1, len(positions)).mean(dim=0).cpu().numpy()}


def compute_sample_plan_arrays(
    model: Model, objective: Loss, dataset: Dataset, views: Views, loader_config: LoaderConfig
) -> ArraysByName:
    """Return the plan and the target plan of two views of items.

    Thumbnails of the views are included for images, view names for views that the data name.
    """
    positions = random_positions_sorted_by_label(dataset, 32)
    batch = dataset.__getitems__(positions.tolist())
    model.to(loader_config.device)
    with fixed_seed(0, loader_config.device), inference_mode(model):
        made = views(loader_config.views_to_device(batch))
        z0, z1 = (z.float() for z in model.project(model.encode(made))[:2])
        options = objective.without_unread_labels({"labels": batch.labels, "domains": batch.domains})
        plan, target = objective.plan(z0, z1, **options), objective.target_plan(z0, z1, **options)
    arrays: ArraysByName = {
        "plan": plan.cpu().numpy(),
        "target": target.cpu().numpy(),
        "plan_items": np.array(len(positions)),
    }
    if batch.labels is not None:
        arrays["plan_labels"] = batch.labels.numpy()
    if len(dataset.view_names) == len(made):
        arrays["plan_view_names"] = np.array(dataset.view_names[:2], dtype=np.str_)
    if all(len(shape) == 3 for shape in views.shapes[:2]):
        for number, view in enumerate(made[:2]):
            arrays[f"plan_view_{number + 1}"] = shrink_to_uint8_nchw(view.cpu(), PLOTTED_THUMBNAIL_SIDE_PIXELS)
    return arrays


def collect_worst_probe_error_arrays(context: EvalContext) -> ArraysByName:
    """Return the test items that the linear probe misclassifies most confidently.

    The most confident one is first. `mistaken` are their positions, `mistaken_true` and `mistaken_told` the true and
    the predicted class, `mistaken_sure` the probability of the latter, `mistaken_views` the names of their views,
    `mistaken_keys` their names in the data, if any, and `mistaken_0`, `mistaken_1` and so on the views.
    """
    probabilities = context.fitted_probe.predict_proba(context.test_features.cpu().numpy())
    predicted, true = context.fitted_probe.classes_[probabilities.argmax(axis=1)], context.test_labels.cpu().numpy()
    confidence = np.where(predicted == true, -1.0, probabilities.max(axis=1))
    items = np.argsort(-confidence, kind="stable")[: min(MAX_SAVED_WORST_ITEMS, int((predicted != true).sum()))]
    if len(items) == 0:
        return {}
    views = make_item_previews_per_view(context.test, torch.from_numpy(items), LISTED_THUMBNAIL_SIDE_PIXELS)
    keys = context.test.keys
    names = {} if keys is None else {"mistaken_keys": np.array([keys[item] for item in items], dtype=np.str_)}
    return names | {
        "mistaken": items,
        "mistaken_true": true[items],
        "mistaken_told": predicted[items],
        "mistaken_sure": confidence[items].astype(np.float32),
        "mistaken_views": np.array(context.test.view_names, dtype=np.str_),
        **{f"mistaken_{number}": view for number, view in enumerate(views)},
    }


def collect_worst_pair_arrays(run: WritableRun, train: Dataset) -> ArraysByName:
    """Return the training pairs with the lowest scores in the online audit.

    The most suspicious one is first. `worst` are their positions, `worst_1` and `worst_2` their two views, and
    `worst_better` the second view of the better partner, or of the pair itself if there is none. Empty without an audit
    or on other items.
    """
    if not run.pairs_path.exists():
        return {}
    saved = run.pair_scores()
    pair_scores, partners = saved["scores"], saved.get("partners", np.full(len(saved["scores"]), -1))
    if len(pair_scores) != len(train) or len(train.shapes) != 2:
        return {}
    if run.mismatched_path.exists():
        train = replace_views_after_first(train, torch.from_numpy(run.partners_after_mismatch()))
    worst = np.argsort(pair_scores, kind="stable")[:MAX_SAVED_WORST_ITEMS]
    better = np.where(partners[worst] < 0, worst, partners[worst])
    first, second = make_item_previews_per_view(train, torch.from_numpy(worst), LISTED_THUMBNAIL_SIDE_PIXELS)
    return {
        "worst": worst,
        "worst_1": first,
        "worst_2": second,
        "worst_better": make_item_previews_per_view(train, torch.from_numpy(better), LISTED_THUMBNAIL_SIDE_PIXELS)[1],
        "worst_views": np.array(train.view_names, dtype=np.str_),
    }


def fixed_random_positions(num_items: int, maximum: int) -> Tensor:
    """Return ascending positions of a fixed random subsample of the items."""
    generator = torch_generator("evaluation.samples", num_items)
    return torch.randperm(num_items, generator=generator)[:maximum].sort().values


def random_positions_sorted_by_label(dataset: Dataset, maximum: int) -> Tensor:
    """Return the positions of a fixed random subsample, sorted by label."""
    positions = fixed_random_positions(len(dataset), maximum)
    return positions if dataset.labels is None else positions[dataset.labels[positions].argsort(stable=True)]


def project_to_2d_with_method(features: Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """Project features to 2-D by t-SNE or PCA, and name the method."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rows = features.numpy()
    varies = bool(rows.std(axis=0).any())
    # One thread, as for the linear probe: on a busy machine two are far slower.
    with threadpool_limits(1):
        if varies and len(rows) > 90 and rows.shape[1] > 1:  # t-SNE needs several times more items than neighbors
            tsne = TSNE(perplexity=30.0, init="pca", max_iter=500, random_state=0)
            return tsne.fit_transform(rows), "t-SNE"
        dimensions = min(2, *rows.shape)
        plane = PCA(dimensions, svd_solver="full").fit_transform(rows) if varies else np.zeros((len(rows), dimensions))
    return np.pad(plane, ((0, 0), (0, 2 - dimensions))).astype(np.float32), "PCA"
