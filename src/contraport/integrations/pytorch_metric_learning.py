"""The calling form of pytorch-metric-learning's losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import contraport as cp
from contraport.errors import check


class MetricLearningLoss(nn.Module):
    """An objective under the call ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.

    Args:
        objective: what is called on embeddings that have no reference set; default: ``sup_con(temperature=0.1)``.
        reference: what is called on embeddings and a reference set; default: ``sup_con(temperature=0.1,
            layout="cross")``.

    Raises:
        UsageError: in the call, ``indices_tuple`` is given, or a reference set without the labels of both.

    >>> import torch
    >>> loss = MetricLearningLoss()
    >>> z, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> value = loss(z, labels), loss(z, labels, ref_emb=z, ref_labels=labels)
    """

    def __init__(
        self, objective: cp.objectives.Loss | None = None, reference: cp.objectives.Loss | None = None
    ) -> None:
        super().__init__()
        self.objective = cp.sup_con(temperature=0.1) if objective is None else objective
        self.reference = cp.sup_con(temperature=0.1, layout="cross") if reference is None else reference

    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
    ) -> Tensor:
        """Return the loss.

        Args:
            embeddings: (n, d).
            labels: (n,), or (n, classes) zeros and ones.
            indices_tuple: a miner's pairs or triplets: refused, as each row is compared with all columns.
            ref_emb: (m, d), with which the embeddings are compared. Where it is these themselves, the same tensor, no
                row is compared with itself.
            ref_labels: (m,), or (m, classes).
        """
        check(
            indices_tuple is None,
            "indices_tuple: must be None: a plan weighs all pairs itself; PairList(pairs) lists the positives.",
        )
        if ref_emb is None:
            return self._value(self.objective, embeddings, labels=labels)
        itself = ref_emb is embeddings
        ref_labels = labels if itself and ref_labels is None else ref_labels
        known = labels is not None and ref_labels is not None
        check(known, "ref_labels: expected labels= and ref_labels= with ref_emb.")
        ids = (torch.arange(len(embeddings)),) * 2 if itself else None
        return self._value(self.reference, embeddings, ref_emb, labels=(labels, ref_labels), ids=ids)

    def _value(self, objective: nn.Module, *views: Tensor, **facts: Any) -> Tensor:
        loss: Tensor = objective(*views, **facts)
        return loss
