"""Early stopping of a training run that no longer improves."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from contraport._utils.formatting import format_keyword_or_flag, format_options, pluralize
from contraport._utils.spec_parser import parse_spec
from contraport.data import Batch
from contraport.distributed import broadcast_object
from contraport.errors import check
from contraport.metrics.registry import Metric, ScheduledMetric, parse_scheduled_metrics, select_metrics
from contraport.training.callbacks.metrics_writer import MetricsWriter
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop

log = logging.getLogger("contraport.training")

LOGGED_AS_FLAT_RELATIVE_CHANGE = 1e-3
"""Relative change below which a loss or metric is logged as flat, without stopping the training."""


class StoppingRule(NamedTuple):
    """Rule of early stopping, parsed from the option `early_stopping`.

    Attributes:
        metric: the watched metric; None: the mean loss of an epoch.
        explicit_patience: number of epochs without improvement after which the training ends; None: the default.
        min_delta: smallest change that counts as an improvement, in the unit of the metric.
    """

    metric: Metric | None
    explicit_patience: int | None = None
    min_delta: float = 0.0

    @property
    def watched_key(self) -> str:
        """Key of the watched metric, or "loss"."""
        return "loss" if self.metric is None else self.metric.key

    @property
    def sign(self) -> int:
        """1 if higher values are better, -1 if lower values are."""
        return 1 if self.metric is not None and self.metric.better_direction == "higher" else -1

    def resolve_patience(self, epochs: int) -> int:
        """Return the patience, by default a fifth of `epochs` but at least 10."""
        return self.explicit_patience or max(10, int(0.2 * epochs))


def parse_stopping_rule(text: str) -> StoppingRule:
    """Parse the option `early_stopping`, which is ``loss`` or a metric with settings.

    Raises:
        UsageError: an unknown metric, one without a better direction, or a bad setting.

    >>> rule = parse_stopping_rule("recall@1:patience=20")
    >>> rule.watched_key, rule.explicit_patience, rule.sign
    ('recall@1', 20, 1)
    """
    name = text.partition(":")[0]
    metrics = [] if name == "loss" else select_metrics([name], argument="early_stopping")
    directed = [metric for metric in metrics if metric.better_direction != "neither"]
    message = f"early_stopping: must be loss, or one metric with a better direction, such as recall@1, got {name!r}."
    check(name == "loss" or len(metrics) == len(directed) == 1, message, "metric")
    _, settings = parse_spec("early_stopping", text, {name: ("patience", "min_delta")})
    patience, min_delta = settings.get("patience"), settings.get("min_delta", 0.0)
    message = f"early_stopping: patience must be an integer >= 1, got {patience!r}."
    check(patience is None or (isinstance(patience, int) and patience >= 1), message, "patience")
    message = f"early_stopping: min_delta must be a finite number >= 0, got {min_delta!r}."
    check(not isinstance(min_delta, str) and 0 <= min_delta < math.inf, message, "min_delta")
    return StoppingRule(directed[0] if directed else None, patience, min_delta)  # type: ignore[arg-type]


def list_scheduled_metrics(settings: Settings) -> list[ScheduledMetric]:
    """List the metrics that `online_metrics` and `early_stopping` need in training."""
    scheduled = parse_scheduled_metrics(settings.online_metrics)
    watched = settings.early_stopping and parse_stopping_rule(settings.early_stopping).metric
    if watched and watched.key not in {one.metric.key for one in scheduled}:
        scheduled.append(ScheduledMetric(watched, 1))
    return scheduled


class EarlyStopping(Callback):
    """Callback that ends a training run when its watched metric stops improving.

    Without a value of the option `early_stopping` it only logs that the loss is flat. Other online metrics of which
    higher is better are logged too when they are flat.

    It follows the metrics writer, whose online metrics it reads, in the list of callbacks. It precedes the checkpoints,
    which hold its state: a resumed training stops at the same epoch.

    Args:
        stopping_rule: the value of `early_stopping`; None: the loss is watched, and the training is not stopped.
        metrics_checked_for_flatness: online metrics that do not stop the training; only if higher is better.
    """

    def __init__(
        self,
        stopping_rule: str | None,
        metrics_writer: MetricsWriter,
        metrics_checked_for_flatness: Sequence[Metric] = (),
    ) -> None:
        self._stops = stopping_rule is not None
        self._rule = parse_stopping_rule(stopping_rule or "loss")
        self._metrics_writer = metrics_writer
        # Those of which lower is better, such as uniformity and alignment, improve at the cost of one another.
        shares = [metric for metric in metrics_checked_for_flatness if metric.better_direction == "higher"]
        self._logged_metrics = [metric for metric in shares if metric.key != self._rule.watched_key]
        self._best_by_metric: dict[str, tuple[float, int, bool]] = {}  # value, epoch, and whether a flat one was logged
        self._best: float | None = None
        self._best_epoch = 0
        self._loss_sum: Tensor | float = 0.0
        self._loss_count = 0

    def state(self) -> dict[str, Any]:
        return {
            "name": self._rule.watched_key,
            "best": self._best,
            "best_epoch": self._best_epoch,
            "loss_sum": float(self._loss_sum),
            "loss_count": self._loss_count,
            "best_by_metric": dict(self._best_by_metric),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._loss_sum, self._loss_count = state["loss_sum"], state["loss_count"]
        self._best_by_metric = dict(state.get("best_by_metric", {}))  # checkpoints of earlier versions lack it
        if state["name"] == self._rule.watched_key:  # another metric may be watched from here on
            self._best, self._best_epoch = state["best"], state["best_epoch"]

    def on_start(self, loop: Loop) -> None:
        """Stop a resumed training that is out of patience, and warn of a useless patience."""
        patience = self._rule.resolve_patience(loop.epochs)
        loop.should_stop = self._stops and loop.completed_epochs - self._best_epoch >= patience
        if self._stops and 1 + patience >= loop.epochs:
            log.warning(
                "early stopping: a patience of %s cannot end a training run of %s early; set a smaller one, as in %s",
                pluralize(patience, "epoch"), pluralize(loop.epochs, "epoch"),
                format_options(early_stopping=f"{self._rule.watched_key}:patience=2"),
            )  # fmt: skip

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Add the batch loss to the sum for the epoch's mean loss."""
        self._loss_sum = self._loss_sum + loss  # read after the epoch, as each read waits for a GPU
        self._loss_count += 1

    def after_epoch(self, loop: Loop) -> None:
        self._log_newly_flat_metrics(loop)
        mean_loss = float(self._loss_sum) / self._loss_count
        self._loss_sum, self._loss_count = 0.0, 0
        key = None if self._rule.metric is None else self._rule.metric.key
        # All processes decide by the value of the first, which alone computes the online metrics.
        value: float | None = broadcast_object(mean_loss if key is None else self._metrics_writer.last_row.get(key))
        margin = self._rule.min_delta if self._stops else LOGGED_AS_FLAT_RELATIVE_CHANGE * abs(self._best or 0.0)
        is_better = (
            value is not None
            and not math.isnan(value)
            and (self._best is None or self._rule.sign * (value - self._best) > margin)
        )
        if is_better:
            self._best, self._best_epoch = value, loop.completed_epochs
        patience = self._rule.resolve_patience(loop.epochs)
        if self._best is None or loop.completed_epochs - self._best_epoch != patience:
            return
        if self._stops:
            loop.should_stop = True
            metric = self._rule.metric
            log.info(
                "early stopping: %s is best in epoch %d (%s); stopped after epoch %d of %d",
                self._rule.watched_key, self._best_epoch,
                f"{self._best:.4f}" if metric is None else metric.format(self._best),
                loop.completed_epochs, loop.epochs,
            )  # fmt: skip
        elif loop.completed_epochs < loop.epochs:
            log.info(
                "loss: has not improved since epoch %d, for %s; %s ends such a run early",
                self._best_epoch, pluralize(patience, "epoch"), format_keyword_or_flag("early_stopping"),
            )  # fmt: skip

    def _log_newly_flat_metrics(self, loop: Loop) -> None:
        """Log online metrics that have not improved within the default patience."""
        for metric in self._logged_metrics:
            patience = StoppingRule(metric).resolve_patience(loop.epochs)
            value = self._metrics_writer.last_row.get(metric.key, math.nan)
            if math.isnan(value):  # not computed in this epoch
                continue
            best, epoch, is_logged = self._best_by_metric.get(metric.key, (value, 0, False))
            if epoch == 0 or value - best > LOGGED_AS_FLAT_RELATIVE_CHANGE * abs(best):
                self._best_by_metric[metric.key] = value, loop.completed_epochs, False
            elif not is_logged and loop.completed_epochs - epoch >= patience and loop.completed_epochs < loop.epochs:
                self._best_by_metric[metric.key] = best, epoch, True
                log.info(
                    "%s: has not improved since epoch %d (%s), for %s; %s ends such a run early",
                    metric.key, epoch, metric.format(best), pluralize(loop.completed_epochs - epoch, "epoch"),
                    format_options(early_stopping=metric.key),
                )  # fmt: skip
