"""Adapter of objectives to the trainer of sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import contraport as cp
from contraport.errors import (
    UsageError,
    check,
    check_integer,
    check_name,
    check_nonempty_sequence,
    check_type,
    rename_argument,
    type_and_shape,
)
from contraport.objectives.inputs import check_dense_and_not_meta


class SentenceTransformerLoss(nn.Module):
    """Adapter that makes an objective a loss for `SentenceTransformerTrainer`.

    The first column of the data is the anchor and the second its positive. Further columns and labels:

    - further columns are hard negatives of all anchors (``columns="negatives"``), or further views of the item
      (``columns="views"``);
    - a single column is compared with itself by the labels, for `sup_con` and similar objectives;
    - integers are classes, for objectives that need them;
    - one score per row, ``(n,)``, is its weight in the mean;
    - a score for each column after the first, ``(n, columns - 1)``, is the relative target mass of that column: several
      positives, or a teacher's scores. The columns of other anchors are negatives.

    Args:
        model: the `SentenceTransformer`.
        objective: called on the embeddings; default: ``info_nce(temperature=0.05, symmetric=False)``, which is
            sentence-transformers' `MultipleNegativesRankingLoss`.
        columns: role of the columns after the second.
        mini_batch_size: number of rows of a column whose activations are stored at a time: each chunk is computed again
            in backward, with the same random numbers, so that memory is that of a chunk and the gradient that of the
            whole batch. Default: the batch.

    Raises:
        UsageError: columns is unknown, the model or objective is of another type, or mini_batch_size is not a positive
            integer; in the call, columns of another form, labels that the objective does not accept, or features that
            cannot be split into chunks.

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
        check_name("columns", columns, ("negatives", "views"))
        check_type("model", model, nn.Module, "SentenceTransformer(...)")
        if mini_batch_size is not None:
            check_integer("mini_batch_size", mini_batch_size)
        if objective is not None:
            check_type("objective", objective, cp.objectives.Loss, "info_nce()")
        self.model = model
        self.objective = cp.info_nce(temperature=0.05, symmetric=False) if objective is None else objective
        self.columns = columns
        self.mini_batch_size = mini_batch_size

    def forward(self, sentence_features: Sequence[Mapping[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of tokenized texts.

        Args:
            sentence_features: input of the model for each column.
            labels: the column of labels, (n,) or (n, columns - 1), or None.
        """
        expected = "a list of the model's inputs, one mapping per column"
        check_nonempty_sequence("sentence_features", sentence_features, expected)
        for features in sentence_features:
            check_type("sentence_features", features, Mapping, "model.tokenize(texts)")
        return self.compute_embedding_loss([self._embed_in_chunks(features) for features in sentence_features], labels)

    def compute_embedding_loss(self, columns: Sequence[Tensor], labels: Tensor | None = None) -> Tensor:
        """Return the loss of embeddings, one tensor (n, d) per text column of the dataset."""
        check_nonempty_sequence("columns", columns, "a list of embeddings (n, d), one tensor per column")
        for number, column in enumerate(columns):
            good = isinstance(column, Tensor) and column.ndim == 2 and column.shape[1] == columns[0].shape[1]
            expected = "a tensor (n, d), with the same d for all columns"
            check(good, f"columns: {number}: must be {expected}, got {type_and_shape(column)}.", "shape")
        if labels is not None:
            check_type("label", labels, Tensor, "torch.tensor([0, 1])")
            check_dense_and_not_meta("label", labels, columns[0].device)
        classes = labels is not None and not labels.is_floating_point()
        if classes or len(columns) == 1:
            takes_views = isinstance(self.objective, cp.Objective) and self.objective.target.positives_from_views
            got = "no labels and one column" if labels is None else f"{labels.dtype} for {self.objective!r}"
            message = f"label: must be scores, or classes with an objective such as sup_con(), got {got}."
            check(not takes_views, message, "missing" if labels is None else "type")
        options: dict[str, Any] = {} if labels is None else {"labels" if classes else "weights": labels}
        if len(columns) > 1 and self.columns == "negatives":
            anchor, *candidates = columns
            if labels is not None and labels.ndim == 2:
                sizes = [len(column) for column in columns]
                check(len({*sizes}) == 1, f"columns: must have the same rows with scores, got {sizes} rows.", "shape")
                got_shape, shape = tuple(labels.shape), (len(anchor), len(candidates))
                check(got_shape == shape, f"label: must be one score per candidate, {shape}, got {got_shape}.", "shape")
                rows = torch.arange(len(anchor)).repeat(len(candidates))
                pairs = torch.stack([rows, torch.arange(len(rows))], 1)  # columns of the concatenated candidates
                with rename_argument("label", "shares"):
                    options = {"target": cp.PairList(pairs, labels.T.reshape(-1).cpu())}
                candidates = [torch.cat(candidates)]
            positive, *negatives = candidates
            if negatives:
                options["negatives"] = torch.cat(negatives)
            columns = [anchor, positive]
        with rename_argument("label", "weights"):
            loss: Tensor = self.objective(*columns, **options)
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Return the configuration of the loss for the model card."""
        return {"objective": repr(self.objective), "columns": self.columns, "mini_batch_size": self.mini_batch_size}

    def _embed_in_chunks(self, features: Mapping[str, Any]) -> Tensor:
        """Return embeddings (n, d) of a text column, recomputed chunkwise for backpropagation."""
        if self.mini_batch_size is None:
            return self._encode_texts(features)
        rows = {len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim > 0}
        if len(rows) != 1:
            message = f"mini_batch_size: requires features with one row per text, got {sorted(rows)} rows; use None."
            raise UsageError(message, kind="rows_differ")
        (size,) = rows
        chunks = []
        for top in range(0, size, self.mini_batch_size):
            rows_of_chunk = slice(top, top + self.mini_batch_size)
            chunk = {  # values that are not per row stay as they are
                name: value[rows_of_chunk] if isinstance(value, Tensor) and value.ndim > 0 else value
                for name, value in features.items()
            }
            chunks.append(checkpoint(self._encode_texts, chunk, use_reentrant=False))
        return torch.cat(chunks)

    def _encode_texts(self, features: Mapping[str, Any]) -> Tensor:
        """Return the sentence embeddings (n, d) of tokenized texts."""
        output = self.model(dict(features))  # a copy, as modules write into it
        good = isinstance(output, Mapping) and "sentence_embedding" in output
        got = sorted(output) if isinstance(output, Mapping) else type_and_shape(output)
        check(good, f"model: must return a mapping with 'sentence_embedding', got {got}.", "output")
        embedding: Tensor = output["sentence_embedding"]
        return embedding
