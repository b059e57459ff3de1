"""A loss for the trainer of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import contraport as cp
from contraport.distributed import world
from contraport.errors import check


class Arguments(Protocol):
    """What the trainer's arguments say of how it scales a loss: see `transformers.TrainingArguments`."""

    gradient_accumulation_steps: int
    average_tokens_across_devices: bool


class TrainerLoss(nn.Module):
    """Any objective as ``Trainer(..., compute_loss_func=...)``.

    The trainer takes it that such a loss has been divided by what is counted in all steps of accumulation, and on
    several devices multiplies it by their number where the data have labels: told its arguments, this loss undoes both,
    so that gradients of several steps are averaged, and the batch of all devices counts as one.

    Args:
        objective: what is called on the embeddings; default: ``info_nce(temperature=0.07)``.
        outputs: the names, in the model's output, of the embeddings (n, d) that are the views; those of CLIP and its
            like by default. With one name the labels say what belongs together.
        logit_scale: the model's own parameter, the logarithm of 1 / temperature, as CLIP has it; default: the
            objective's temperature.
        arguments: the trainer's `TrainingArguments`; default: nothing is accumulated, on one device.

    Raises:
        UsageError: in the call, the model's output has no such name.

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
        arguments: Arguments | None = None,
    ) -> None:
        super().__init__()
        self.objective = cp.info_nce(temperature=0.07) if objective is None else objective
        self.outputs = tuple(outputs)
        self._logit_scale = (logit_scale,)  # in a tuple: it stays the model's
        self.arguments = arguments

    def forward(
        self, outputs: Mapping[str, Any], labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            outputs: the model's.
            labels: class of each item, (n,), for objectives that ask for it.
            num_items_in_batch: what the trainer has counted.
        """
        missing = [name for name in self.outputs if outputs.get(name) is None]
        check(not missing, f"outputs: expected names among {sorted(outputs)}, got {missing}.")
        (scale,) = self._logit_scale
        temperature = None if scale is None else torch.exp(-scale)
        views = [outputs[name] for name in self.outputs]
        loss: Tensor = self.objective(*views, labels=labels, temperature=temperature)
        return loss / self._factor(num_items_in_batch)

    def _factor(self, counted: Tensor | int | None) -> int:
        """Return what the trainer multiplies by, or expects to be divided by."""
        if self.arguments is None:
            return 1
        steps = self.arguments.gradient_accumulation_steps if torch.is_grad_enabled() else 1  # none in evaluation
        return steps * (world().size if counted is not None and self.arguments.average_tokens_across_devices else 1)
