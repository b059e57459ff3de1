"""Adapter of objectives to the training loop of open_clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

import contraport as cp
from contraport.errors import UsageError, check, check_positive, check_type, type_and_shape


class ClipLoss(nn.Module):
    """Adapter that gives an objective the signature of open_clip's `ClipLoss` and `SigLipLoss`.

    The temperature is the model's, 1 / logit_scale, and gets its gradient, as does the bias of `sigmoid`. Several
    processes share one batch without further arguments.

    Args:
        objective: called on image and text features; default: `info_nce`, which is open_clip's `ClipLoss`;
            ``sigmoid()`` is its `SigLipLoss`.

    Raises:
        UsageError: the objective is of another type; in the call, a bias is given for an objective without one, or the
            scale is not positive.

    >>> import torch
    >>> ClipLoss()(torch.eye(2), torch.eye(2), logit_scale=torch.tensor(1.0))
    tensor(0.3133)
    """

    def __init__(self, objective: cp.objectives.Loss | None = None) -> None:
        super().__init__()
        if objective is not None:
            check_type("objective", objective, cp.objectives.Loss, "info_nce()")
        self.objective = cp.info_nce() if objective is None else objective

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Return the loss of image and text features as a tensor or dictionary.

        Args:
            image_features: (n, d).
            text_features: (n, d).
            logit_scale: 1 / temperature.
            logit_bias: of `sigmoid`, or None.
            output_dict: return the loss in a dictionary, under ``contrastive_loss``.
        """
        check_type("image_features", image_features, Tensor, "model.encode_image(images)")
        check_type("text_features", text_features, Tensor, "model.encode_text(texts)")
        if not isinstance(logit_scale, Tensor):
            check_positive("logit_scale", logit_scale)
        if logit_bias is not None:
            check_type("logit_bias", logit_bias, Tensor, "model.logit_bias")
            single = logit_bias.numel() == 1
            check(single, f"logit_bias: must have one element, got {type_and_shape(logit_bias)}.", "shape")
        names = [name for name, _ in self.objective.named_parameters() if name.endswith("divergence.bias")]
        good = bool(names) or logit_bias is None
        message = f"logit_bias: not accepted by {self.objective!r}, which has no bias; sigmoid() has one."
        check(good, message, "conflict")
        own = {} if logit_bias is None else dict.fromkeys(names, logit_bias)
        options = {"temperature": 1 / logit_scale}
        loss: Tensor = functional_call(self.objective, own, (image_features, text_features), options)
        return {"contrastive_loss": loss} if output_dict else loss


def create_loss(args: Any, objective: cp.objectives.Loss | None = None) -> ClipLoss:
    """Build the loss from open_clip's arguments, like open_clip's `create_loss`.

    Args:
        args: parsed command line of open_clip.
        objective: as in `ClipLoss`; default: `sigmoid` with ``--siglip``, else `info_nce`.

    Raises:
        UsageError: `args` has no attributes, or requires more than a contrastive loss: captioning (CoCa) or
            distillation.
    """
    is_namespace = args is not None and not isinstance(args, Mapping)
    check(is_namespace, f"args: must be open_clip's parsed command line, got {type_and_shape(args)}.", "type")
    if getattr(args, "distill", False):
        raise UsageError("distill: not supported; use a teacher's features as target, SoftNeighbors((images, texts)).")
    if "coca" in str(getattr(args, "model", "")).lower():
        raise UsageError(f"model: must have no captioning loss, got {args.model!r}.")
    return ClipLoss(cp.sigmoid() if objective is None and getattr(args, "siglip", False) else objective)
