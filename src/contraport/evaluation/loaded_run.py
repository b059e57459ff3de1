"""Run loaded for evaluation, with its encoder, data, baselines and objective."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from contraport._utils.progress import ProgressBars
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, RawInputEncoder, check_views_fit_model
from contraport.encoders import Model
from contraport.encoders.lora import with_merged_lora
from contraport.errors import UsageError, check
from contraport.evaluation.command_options import EvaluateOptions
from contraport.evaluation.report_arrays import ArraysByName, compute_sample_plan_arrays
from contraport.evaluation.split_loading import load_evaluation_datasets, resolve_device
from contraport.metrics.eval_context import EvalContext
from contraport.objectives import Balanced, Loss, Objective
from contraport.options import has_object_placeholder
from contraport.runs import WritableRun, read_run_file
from contraport.training.callbacks.checkpoints import read_checkpoint
from contraport.training.components.data_builder import build_views
from contraport.training.components.model_builder import apply_lora, build_untrained_copy
from contraport.training.components.step_builder import build_loss_schedules, build_objective
from contraport.training.config import Settings
from contraport.training.step.target_parser import find_batch_independent_target


def find_checkpoints_by_epoch(run: WritableRun, *, before_epoch: int | None) -> dict[int, Path]:
    """Return the intermediate checkpoints of a run by epoch, in ascending order."""
    files = {
        int(match[1]): file
        for file in run.checkpoints.glob("*.ckpt")
        if (match := re.fullmatch(r"epoch-(\d+)\.ckpt", file.name))
    }
    return {epoch: files[epoch] for epoch in sorted(files) if before_epoch is None or epoch < before_epoch}


def iter_intermediate_model_copies(
    run: WritableRun, trained_model: Model, checkpoint_by_epoch: Mapping[int, Path]
) -> Iterator[tuple[int, Model]]:
    """Yield the epoch and a model copy for each intermediate checkpoint."""
    settings = run.settings()

    def load_model(path: Path) -> Model:
        state, prefix = read_checkpoint(path)["pipeline"], "model."  # the training module has other weights too
        weights = {name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)}
        intermediate = copy.deepcopy(trained_model)
        apply_lora(intermediate, settings)
        intermediate.load_state_dict(weights)
        return with_merged_lora(intermediate).eval()

    for epoch, file in checkpoint_by_epoch.items():
        loaded: Model = read_run_file(file, load_model)
        yield epoch, loaded


def build_initial_test_plan_objective(settings: Settings) -> Loss:
    """Build a run's objective with untrained parameters, to compute the plan of test items.

    Raises:
        UsageError: the objective has no such plan; the message is a note of the evaluation.
    """
    check(settings.objective is not None, "No plan is drawn: the run decodes views and compares no items.", "no_plan")
    message = "No plan is drawn: the objective was an object, which the run folder does not store."
    check(not has_object_placeholder(settings.objective), message, "no_plan")
    message = "No plan is drawn: items were compared with prototypes, which the run folder does not store."
    check(settings.prototypes is None, message, "no_plan")
    target = None if settings.target is None else find_batch_independent_target(settings.target)
    message = "No plan of test items is drawn: the target is known only for training items."
    check(settings.target is None or target is not None, message, "no_plan")
    try:
        objective = build_objective(settings)
    except UsageError as error:  # an objective of another version; its encoder can still be evaluated
        raise UsageError(f"No plan is drawn: the objective cannot be built. {error}", kind="no_plan") from error
    assert isinstance(objective, Loss)
    check(objective.compares_items, "No plan is drawn: the objective compares coordinates, not items.", "no_plan")
    if isinstance(objective, Objective):
        message = "No plan of test items is drawn: its marginals were weights of training items."
        check(not objective.constraint.requires_weights, message, "no_plan")
    if target is not None:
        assert isinstance(objective, Objective)
        objective.target = target
    return objective


def copy_objective_at_epoch(initial: Loss, run: WritableRun, settings: Settings, epochs: int | None) -> Loss:
    """Return a copy of the objective with its parameters after `epochs` epochs."""
    objective, done = copy.deepcopy(initial), settings.epochs if epochs is None else epochs
    # Schedules as if an epoch had two steps, at the second of the last epoch: a temperature has reached its end there.
    for schedule in build_loss_schedules(settings, objective, steps=1, steps_per_epoch=2):
        schedule.apply(objective, 2 * max(done, 1) - 1)
    if isinstance(objective, Objective) and objective.constraint.requires_ids:
        objective.set_constraint(Balanced(50))  # the potentials of training items are not those of test items
    rows = [row for row in run.metrics_rows() if row.get("epoch", 0) <= done]
    if rows and rows[-1].get("temperature") is not None:  # the last value of a learned temperature
        objective.temperature = rows[-1]["temperature"]
    return objective


@dataclass(frozen=True)
class LoadedRun:
    """Encoder, data, views and objective of one run, loaded for its evaluation.

    Attributes:
        trained_epochs: number of epochs that the model was trained for, or None if unknown.
        initial_objective: the objective at the start of training; None if its plan cannot be drawn.
        final_objective: the objective at the end of training; None if its plan cannot be drawn.
        no_plan_note: the reason why the plan of the objective cannot be drawn, or None.
        data_notes: notes about the data for readers of the results, such as test items that were left out.
    """

    run_folder: WritableRun
    evaluate_options: EvaluateOptions
    training_settings: Settings
    model: Model
    trained_epochs: int | None
    train: Dataset
    test: Dataset
    views: Views
    loader_config: LoaderConfig
    initial_objective: Loss | None
    final_objective: Loss | None
    no_plan_note: str | None
    data_notes: tuple[str, ...] = ()

    @classmethod
    def from_run(cls, run: WritableRun, options: EvaluateOptions) -> LoadedRun:
        """Load the encoder, data and objective of a run."""
        device, bars = resolve_device(options.device), ProgressBars(shown=options.progress)
        loader_config = LoaderConfig(options.batch_size, device, options.num_workers, bars)
        # Read before the model: if a training saves another model meanwhile, its epochs differ at the end.
        epochs = run.saved_model_epoch()
        settings, model = run.settings(), run.model(trust_remote_code=options.trust_remote_code)
        train, test, notes = load_evaluation_datasets(run, settings, model, options)
        views = build_views(settings, train)
        check_views_fit_model(model, train, views)
        initial = final = no_plan_note = None
        try:
            initial = build_initial_test_plan_objective(settings)
            final = copy_objective_at_epoch(initial, run, settings, epochs)
        except UsageError as error:
            no_plan_note = str(error)
        return cls(
            run, options, settings, model, epochs, train, test, views, loader_config,
            initial, final, no_plan_note, notes,
        )  # fmt: skip

    def build_context(self, name: str, encoder: Model | RawInputEncoder) -> EvalContext:
        """Build the evaluation context of an encoder on the run's items."""
        return EvalContext(
            encoder,
            self.train,
            self.test,
            self.views,
            self.loader_config,
            name=name,
            neighbors=self.evaluate_options.neighbors,
            objective=self.final_objective,
            classes=self.evaluate_options.classes,
            templates=self.evaluate_options.templates,
        )

    def load_baselines_by_name(self) -> dict[str, Model | RawInputEncoder]:
        """Load both baselines by name: raw inputs, and the model before training."""
        initial = self.run_folder.find_pretrained_initial_model(
            trust_remote_code=self.evaluate_options.trust_remote_code
        )
        if initial is None:
            before = {"untrained": build_untrained_copy(self.training_settings, self.model, self.run_folder.encoder)}
        else:
            before = {"given": initial}
        return {"raw": RawInputEncoder(self.model.shapes), **before}

    def compute_plan_arrays_at_epoch(self, model: Model, epoch: int) -> ArraysByName:
        """Return the plan and the target plan of test items at an epoch."""
        if self.initial_objective is None:
            return {}
        objective = copy_objective_at_epoch(self.initial_objective, self.run_folder, self.training_settings, epoch)
        try:
            return compute_sample_plan_arrays(model, objective, self.test, self.views, self.loader_config)
        except UsageError:  # a missing fact is reported for the last epoch
            return {}
