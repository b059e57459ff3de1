"""A loss for open_clip's training."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

import contraport as cp
from contraport.errors import UsageError, check


class ClipLoss(nn.Module):
    """Any objective under the call of open_clip's `ClipLoss` and `SigLipLoss`.

    The temperature is the model's, 1 / logit_scale, and gets its gradient; so is the bias of `sigmoid`. Several
    processes share one batch, without further arguments.

    Args:
        objective: what is called on image and text features; default: `info_nce`, which is open_clip's `ClipLoss`;
            ``sigmoid()`` is its `SigLipLoss`.

    Raises:
        UsageError: in the call, the objective has no bias, and one is given that is no constant shift.

    >>> import torch
    >>> ClipLoss()(torch.eye(2), torch.eye(2), logit_scale=torch.tensor(1.0))
    tensor(0.3133)
    """

    def __init__(self, objective: cp.objectives.Loss | None = None) -> None:
        super().__init__()
        self.objective = cp.info_nce() if objective is None else objective

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Return the loss, in a dictionary if asked for.

        Args:
            image_features: (n, d).
            text_features: (n, d).
            logit_scale: 1 / temperature.
            logit_bias: of `sigmoid`, or None.
            output_dict: whether the loss is given under the name ``contrastive_loss``.
        """
        bias = {name: logit_bias for name, _ in self.objective.named_parameters() if name.endswith("divergence.bias")}
        check(
            bool(bias) or logit_bias is None,
            f"logit_bias: expected none for {self.objective!r}; sigmoid() has one.",
        )
        own = {name: value for name, value in bias.items() if value is not None}
        call = {"temperature": 1 / logit_scale}
        loss: Tensor = functional_call(self.objective, own, (image_features, text_features), call)
        return {"contrastive_loss": loss} if output_dict else loss


def create_loss(args: Any, objective: cp.objectives.Loss | None = None) -> ClipLoss:
    """Return the loss for the arguments of open_clip's training, in place of its function of this name.

    Args:
        args: of its command line.
        objective: as in `ClipLoss`; default: `sigmoid` with ``--siglip``, else `info_nce`.

    Raises:
        UsageError: the arguments ask for more than a contrastive loss: a captioning one (CoCa) or a distillation.
    """
    if getattr(args, "distill", False):
        raise UsageError("distill: expected none; a teacher's features are a target, SoftNeighbors((images, texts)).")
    if "coca" in str(getattr(args, "model", "")).lower():
        raise UsageError(f"model: expected one without captions, got {args.model!r}: its loss has a part of its own.")
    return ClipLoss(cp.sigmoid() if objective is None and getattr(args, "siglip", False) else objective)
