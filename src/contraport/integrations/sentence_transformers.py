"""A loss for the trainer of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import contraport as cp
from contraport.errors import UsageError, check, unknown_name_error

COLUMNS = ("negatives", "views")


class SentenceTransformerLoss(nn.Module):
    """Any objective as the loss of a `SentenceTransformerTrainer`.

    Of the columns of the data the first is the anchor and the second its positive. What the others are, and what a
    column of labels means:

    - further columns are hard negatives of all anchors (``columns="negatives"``), or further views of the item
      (``columns="views"``);
    - one column alone is compared with itself by the labels, for `sup_con` and its like;
    - whole numbers are classes, for objectives that ask for them;
    - a score for each row, ``(n,)``, is its weight in the mean;
    - a score for each column after the first, ``(n, columns - 1)``, is how much of the anchor each of them is to get:
      several positives, or what a teacher found. The columns of other anchors are negatives then.

    Args:
        model: the `SentenceTransformer`.
        objective: what is called on the embeddings; default: ``info_nce(temperature=0.05, symmetric=False)``, which is
            sentence-transformers' `MultipleNegativesRankingLoss`.
        columns: what the columns after the second are.
        mini_batch_size: most rows of a column whose activations are kept at a time: each chunk is computed again in
            backward, with the random numbers of the first time, so that memory is a chunk's and the gradient that of
            the whole batch. Default: the batch.

    Raises:
        UsageError: columns has an unknown name, mini_batch_size is no positive whole number; in the call, labels that
            the objective does not take, or features that cannot be cut in chunks.

    Source: Gao, Zhang, Han and Callan (2021), Scaling deep contrastive learning batch size under memory limited setup.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: cp.objectives.Loss | None = None,
        *,
        columns: str = "negatives",
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if columns not in COLUMNS:
            raise unknown_name_error("columns", columns, COLUMNS)
        good = mini_batch_size is None or (isinstance(mini_batch_size, int) and mini_batch_size >= 1)
        check(good, f"mini_batch_size: expected a positive whole number, got {mini_batch_size!r}.")
        self.model = model
        self.objective = cp.info_nce(temperature=0.05, symmetric=False) if objective is None else objective
        self.columns = columns
        self.mini_batch_size = mini_batch_size

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Args:
            sentence_features: of each column, what the model takes.
            labels: the column of labels, (n,) or (n, columns - 1), or None.
        """
        return self.compare([self._embedded(features) for features in sentence_features], labels)

    def compare(self, columns: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """Return the loss of embeddings, (n, d) of each column."""
        classes = labels is not None and not labels.is_floating_point()
        if classes or len(columns) == 1:
            self._check_classes(labels)
        facts: dict[str, Any] = {} if labels is None else {"labels" if classes else "weights": labels}
        if len(columns) == 1 or self.columns == "views":
            return self._value(*columns, **facts)
        anchor, *candidates = columns
        if labels is not None and labels.ndim == 2:
            facts = {"target": _shares(labels, len(anchor), len(candidates))}
            candidates = [torch.cat(candidates)]
        positive, *negatives = candidates
        if negatives:
            facts["negatives"] = torch.cat(negatives)
        return self._value(anchor, positive, **facts)

    def _value(self, *views: Tensor, **facts: Any) -> Tensor:
        loss: Tensor = self.objective(*views, **facts)
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model's card says of the loss."""
        return {
            "objective": repr(self.objective),
            "columns": self.columns,
            "mini_batch_size": self.mini_batch_size,
        }

    def _check_classes(self, labels: Tensor | None) -> None:
        objective = self.objective
        by_views = isinstance(objective, cp.Objective) and objective.target.positives_from_views
        check(
            not by_views,
            "label: expected scores, or an objective that asks for classes, such as sup_con(); "
            + ("got no labels and one column." if labels is None else f"got {labels.dtype} for {objective!r}."),
        )

    def _embedded(self, features: Mapping[str, Any]) -> Tensor:
        if self.mini_batch_size is None:
            return self._encode(features)
        rows = {len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim > 0}
        if len(rows) != 1:
            raise UsageError(
                f"mini_batch_size: expected features with a row for each text, got {sorted(rows)} rows; None keeps all."
            )
        (size,) = rows
        chunks = [slice(top, top + self.mini_batch_size) for top in range(0, size, self.mini_batch_size)]
        return torch.cat(
            [checkpoint(self._encode, _cut(features, c), use_reentrant=False, preserve_rng_state=True) for c in chunks]
        )

    def _encode(self, features: Mapping[str, Any]) -> Tensor:
        embedding: Tensor = self.model(dict(features))["sentence_embedding"]  # a copy, as modules write into it
        return embedding


def _cut(features: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    whole = {name: isinstance(value, Tensor) and value.ndim > 0 for name, value in features.items()}
    return {name: value[rows] if whole[name] else value for name, value in features.items()}


def _shares(scores: Tensor, rows: int, candidates: int) -> cp.PairList:
    """Return the target that gives each anchor its own candidates by their scores, (n, candidates)."""
    got = tuple(scores.shape)
    check(got == (rows, candidates), f"label: expected a score for each candidate, {(rows, candidates)}, got {got}.")
    anchors, places = torch.arange(rows).repeat(candidates), torch.arange(rows * candidates)
    return cp.PairList(torch.stack([anchors, places], 1), scores.T.reshape(-1).cpu())
