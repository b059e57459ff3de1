"""Adapter of objectives to the `Trainer` of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import contraport as cp
from contraport.distributed import current_processes
from contraport.errors import check, check_boolean, check_integer, check_nonempty_sequence, check_type, type_and_shape


class TrainerLoss(nn.Module):
    """Adapter that makes an objective the ``compute_loss_func`` of a transformers `Trainer`.

    The trainer assumes that such a loss is divided by a count over all accumulation steps, and multiplies it by the
    number of devices if the data have labels. With ``arguments``, this loss undoes both: gradients of several steps are
    averaged, and the batch of all devices counts as one.

    Args:
        objective: called on the embeddings; default: ``info_nce(temperature=0.07)``.
        outputs: names of the views in the model's output, embeddings (n, d); default: those of CLIP. With one name the
            labels define the positives.
        logit_scale: the model's own parameter, the logarithm of 1 / temperature, as in CLIP; default: the objective's
            temperature.
        arguments: the trainer's `TrainingArguments`; default: no accumulation, one device.

    Raises:
        UsageError: an argument has another type; in the call, a name is missing in the model's output.

    >>> import torch
    >>> loss = TrainerLoss(cp.sup_con(), outputs=["pooler_output"])
    >>> round(loss({"pooler_output": torch.eye(4)}, torch.tensor([0, 0, 1, 1])).item(), 4)
    1.0986
    """

    def __init__(
        self,
        objective: cp.objectives.Loss | None = None,
        *,
        outputs: Sequence[str] = ("image_embeds", "text_embeds"),
        logit_scale: Tensor | None = None,
        arguments: Any = None,
    ) -> None:
        super().__init__()
        if objective is not None:
            check_type("objective", objective, cp.objectives.Loss, "info_nce()")
        check_nonempty_sequence("outputs", outputs, "a list of names of the model output")
        for name in outputs:
            check_type("outputs", name, str, "'image_embeds'")
        if logit_scale is not None:
            check_type("logit_scale", logit_scale, Tensor, "model.logit_scale")
            good = logit_scale.numel() == 1 and logit_scale.layout == torch.strided
            check(
                good, f"logit_scale: must be a dense tensor of one element, got {type_and_shape(logit_scale)}.", "shape"
            )
        if arguments is not None:
            steps, average = "gradient_accumulation_steps", "average_tokens_across_devices"
            good = hasattr(arguments, steps) and hasattr(arguments, average)
            check(good, f"arguments: must be the trainer's TrainingArguments, got {type_and_shape(arguments)}.", "type")
            check_integer(f"arguments.{steps}", getattr(arguments, steps))
            check_boolean(f"arguments.{average}", getattr(arguments, average))
        self.objective = cp.info_nce(temperature=0.07) if objective is None else objective
        self.outputs = tuple(outputs)
        # In a tuple: a bare parameter would be registered as one of this module, but it is the model's.
        self._logit_scale = (logit_scale,)
        self.arguments = arguments

    def forward(
        self, outputs: Mapping[str, Any], labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of a batch from the output of the model.

        Args:
            outputs: of the model.
            labels: class of each item, (n,), for objectives that need it.
            num_items_in_batch: the count of the trainer.
        """
        check_type("outputs", outputs, Mapping, "the output of a model")
        missing = [name for name in self.outputs if outputs.get(name) is None]
        check(not missing, f"outputs: must be names of the model output, {[*outputs]}, got {missing}.", "unknown")
        (scale,) = self._logit_scale
        temperature = None if scale is None else torch.exp(-scale)
        views = [outputs[name] for name in self.outputs]
        for view in views:
            check_type("outputs", view, Tensor, "embeddings (n, d)")
        options = self.objective.without_unread_labels({"labels": labels, "temperature": temperature})
        loss: Tensor = self.objective(*views, **options)
        if self.arguments is None:
            return loss
        # Divided by what the trainer multiplies by.
        steps = self.arguments.gradient_accumulation_steps if torch.is_grad_enabled() else 1  # evaluation has no steps
        scaled = num_items_in_batch is not None and self.arguments.average_tokens_across_devices
        return loss / (steps * (current_processes().size if scaled else 1))
