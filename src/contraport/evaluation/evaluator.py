"""What a run is judged on: its encoder, the data, and those it is judged beside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from contraport._utils.progress import ProgressBars
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, RawInputs, check_shapes
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation.config import EvaluateOptions
from contraport.evaluation.final_objective import build_run_objective, objective_at_epoch
from contraport.evaluation.page_samples import Arrays
from contraport.evaluation.plan_samples import plans
from contraport.evaluation.split_loading import load_splits, resolve_device
from contraport.metrics.eval_context import EvalContext
from contraport.objectives import Loss
from contraport.runs import Run
from contraport.training.components import build_untrained_model, build_views
from contraport.training.config import Settings


@dataclass(frozen=True)
class Evaluator:
    """What a run is judged on.

    Attributes:
        run: its folder.
        asked: how it is to be judged.
        settings: those of its training.
        model: its encoder.
        epochs: after how many the model was saved, or None where that is not told.
        train: the training items.
        test: the test items.
        views: their random views.
        reader: how items are read.
        built: the objective as the training began with it, or why no plan of it can be drawn.
        objective: as it was at the training's end, or why no plan of it can be drawn.
        notes: what a reader of the results should know about the items.
    """

    run: Run
    asked: EvaluateOptions
    settings: Settings
    model: Model
    epochs: int | None
    train: Dataset
    test: Dataset
    views: Views
    reader: LoaderConfig
    built: Loss | str
    objective: Loss | str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, asked: EvaluateOptions) -> Evaluator:
        """Return what a run is judged on.

        Raises:
            UsageError: the run or the data cannot be read, or do not go together.
        """
        reader = LoaderConfig(
            asked.batch_size, resolve_device(asked.device), asked.workers, ProgressBars(shown=asked.progress)
        )
        epochs = run.model_epochs()  # before the model, so that one that is saved meanwhile has other epochs at the end
        settings, model = run.settings(), run.model(trust=asked.trust)
        train, test, notes = load_splits(run, settings, model, asked)
        views = build_views(settings, train)
        check_shapes(model, train, views)
        built = build_run_objective(settings)
        objective = built if isinstance(built, str) else objective_at_epoch(built, run, settings, epochs)
        return cls(run, asked, settings, model, epochs, train, test, views, reader, built, objective, notes)

    def subject(self, name: str, encoder: Model | RawInputs) -> EvalContext:
        """Return an encoder by its name as what is measured."""
        return EvalContext(
            encoder,
            self.train,
            self.test,
            self.views,
            self.reader,
            name=name,
            neighbors=self.asked.neighbors,
            objective=None if isinstance(self.objective, str) else self.objective,
            classes=self.asked.classes,
            templates=self.asked.templates,
        )

    def baselines(self) -> dict[str, Model | RawInputs]:
        """Return what the encoder is judged beside, by name: nothing where it is judged alone."""
        if self.asked.alone:
            return {}
        given = self.run.initial_model(trust=self.asked.trust)
        if given is None:
            before = {"untrained": build_untrained_model(self.settings, self.model, self.run.encoder)}
        else:
            before = {"given": given}
        return {"raw": RawInputs(self.model.shapes), **before}

    def plans_of(self, model: Model, epoch: int) -> list[tuple[int, Arrays]]:
        """Return the plans of a model that was kept at an epoch: none where the page has none to draw."""
        if isinstance(self.built, str):
            return []
        objective = objective_at_epoch(self.built, self.run, self.settings, epoch)
        if isinstance(objective, Loss):
            with suppress(UsageError):  # what it lacks is told of the last epoch
                return [(epoch, plans(model, objective, self.test, self.views, self.reader))]
        return []
