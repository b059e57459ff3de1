"""Loaded run: encoder, data, baselines and objective from a run folder, for its evaluation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from contraport._utils.progress import ProgressBars
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, RawInputEncoder, check_view_shapes
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation.config import EvaluateOptions
from contraport.evaluation.epoch_states import build_initial_objective, build_objective_at_epoch
from contraport.evaluation.page_samples import Arrays, compute_sample_plan
from contraport.evaluation.split_loading import load_splits, resolve_device
from contraport.metrics.eval_context import EvalContext
from contraport.objectives import Loss
from contraport.runs import Run
from contraport.training.components import build_untrained_copy, build_views
from contraport.training.config import Settings


@dataclass(frozen=True)
class LoadedRun:
    """Encoder, data, views and objective of one run, loaded for its evaluation.

    Attributes:
        run_folder: the run folder.
        options: options of `contraport.evaluate`.
        training_settings: training settings of the run.
        model: the trained encoder.
        trained_epochs: number of epochs that the model was trained for, or None if unknown.
        train: dataset of the training items.
        test: dataset of the test items.
        views: makes the random views of an item.
        loader_config: batch size, device and workers for loading items.
        initial_objective: the objective at the start of training, or the reason why its plan cannot be drawn.
        final_objective: the objective at the end of training, or the reason why its plan cannot be drawn.
        data_notes: notes about the data for readers of the results, such as test items that were left out.
    """

    run_folder: Run
    options: EvaluateOptions
    training_settings: Settings
    model: Model
    trained_epochs: int | None
    train: Dataset
    test: Dataset
    views: Views
    loader_config: LoaderConfig
    initial_objective: Loss | str
    final_objective: Loss | str
    data_notes: tuple[str, ...] = ()

    @classmethod
    def from_run(cls, run: Run, options: EvaluateOptions) -> LoadedRun:
        """Load the encoder, data and objective of a run.

        Raises:
            UsageError: the run or the data cannot be read, or do not fit together.
        """
        loader_config = LoaderConfig(
            options.batch_size,
            resolve_device(options.device),
            options.num_workers,
            ProgressBars(shown=options.progress),
        )
        # Read before the model: if a training saves another model meanwhile, its epochs differ at the end.
        epochs = run.num_trained_epochs()
        settings, model = run.settings(), run.model(trust_remote_code=options.trust_remote_code)
        train, test, notes = load_splits(run, settings, model, options)
        views = build_views(settings, train)
        check_view_shapes(model, train, views)
        initial = build_initial_objective(settings)
        objective = initial if isinstance(initial, str) else build_objective_at_epoch(initial, run, settings, epochs)
        return cls(run, options, settings, model, epochs, train, test, views, loader_config, initial, objective, notes)

    def build_context(self, name: str, encoder: Model | RawInputEncoder) -> EvalContext:
        """Build the evaluation context of an encoder on the training and test items of the run."""
        return EvalContext(
            encoder,
            self.train,
            self.test,
            self.views,
            self.loader_config,
            name=name,
            neighbors=self.options.neighbors,
            objective=None if isinstance(self.final_objective, str) else self.final_objective,
            classes=self.options.classes,
            templates=self.options.templates,
        )

    def load_baselines(self) -> dict[str, Model | RawInputEncoder]:
        """Load the baseline encoders (raw inputs, encoder before training) by name; empty with the option `alone`."""
        if self.options.alone:
            return {}
        initial = self.run_folder.initial_model(trust_remote_code=self.options.trust_remote_code)
        if initial is None:
            before = {"untrained": build_untrained_copy(self.training_settings, self.model, self.run_folder.encoder)}
        else:
            before = {"given": initial}
        return {"raw": RawInputEncoder(self.model.shapes), **before}

    def compute_epoch_plan(self, model: Model, epoch: int) -> list[tuple[int, Arrays]]:
        """Compute the transport plan of an intermediate model, as a list with one (epoch, plan), or an empty list."""
        if isinstance(self.initial_objective, str):
            return []
        objective = build_objective_at_epoch(self.initial_objective, self.run_folder, self.training_settings, epoch)
        if isinstance(objective, Loss):
            with suppress(UsageError):  # a missing fact is reported for the last epoch
                return [(epoch, compute_sample_plan(model, objective, self.test, self.views, self.loader_config))]
        return []
