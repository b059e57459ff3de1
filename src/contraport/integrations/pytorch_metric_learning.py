"""Adapter of objectives to the loss signature of pytorch-metric-learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import contraport as cp
from contraport.errors import check, check_type, type_and_shape


class MetricLearningLoss(nn.Module):
    """Adapter that gives an objective the signature of pytorch-metric-learning's losses.

    The signature is ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.

    Args:
        objective: called on embeddings without a reference set; default: ``sup_con(temperature=0.1)``.
        reference: called on embeddings and a reference set; default: ``sup_con(temperature=0.1, layout="cross")``.

    Raises:
        UsageError: an objective is of another type; in the call, ``indices_tuple`` is given, embeddings are no
            matrix, or only one of a reference set and the labels of both is given.

    >>> import torch
    >>> loss = MetricLearningLoss()
    >>> z, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> value = loss(z, labels), loss(z, labels, ref_emb=z, ref_labels=labels)
    """

    def __init__(
        self, objective: cp.objectives.Loss | None = None, reference: cp.objectives.Loss | None = None
    ) -> None:
        super().__init__()
        for name, loss in (("objective", objective), ("reference", reference)):
            if loss is not None:
                check_type(name, loss, cp.objectives.Loss, "sup_con()")
        self.objective = cp.sup_con(temperature=0.1) if objective is None else objective
        self.reference = cp.sup_con(temperature=0.1, layout="cross") if reference is None else reference

    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Tensor:
        """Return the loss of labeled embeddings, optionally against a reference set.

        Args:
            embeddings: (n, d).
            labels: (n,), or (n, classes) zeros and ones.
            indices_tuple: pairs or triplets of a miner; not supported, as each row is compared with all columns.
            ref_emb: reference set, (m, d). If it is the same tensor as the embeddings, self pairs are left out.
            ref_labels: (m,), or (m, classes).
        """
        message = "indices_tuple: must be None: a plan weights all pairs itself; PairList(pairs) lists the positives."
        check(indices_tuple is None, message)
        for name, rows in (("embeddings", embeddings), ("ref_emb", ref_emb)):
            good = isinstance(rows, Tensor) and rows.ndim == 2
            optional = rows is None and name == "ref_emb"
            check(good or optional, f"{name}: must be a tensor (n, d), got {type_and_shape(rows)}.", "shape")
        if ref_emb is None:
            check(ref_labels is None, "ref_labels: not accepted without ref_emb.", "conflict")
            own: Tensor = self.objective(embeddings, labels=labels)
            return own
        same = ref_emb is embeddings
        ref_labels = labels if same and ref_labels is None else ref_labels
        complete = labels is not None and ref_labels is not None
        check(complete, "ref_labels: required with ref_emb, as are labels, not given.", "missing")
        ids = (torch.arange(len(embeddings)),) * 2 if same else None
        loss: Tensor = self.reference(embeddings, ref_emb, labels=(labels, ref_labels), ids=ids)
        return loss
