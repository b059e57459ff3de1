"""Callback that mines hard negatives by the current encoder every few epochs."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import torch

from contraport.catalog.data_option_parsers import MinedNegativesSpec
from contraport.data import BatchOrder, Dataset
from contraport.data.data_loader import ClosableDataLoader, StreamLoader
from contraport.data.formats.array_files import read_npy
from contraport.distributed import broadcast_object, is_main_process, stop_all_on_error
from contraport.embedding import LoaderConfig, embed_views
from contraport.errors import check
from contraport.hard_negatives import mine_hard_negatives
from contraport.seeding import numpy_generator
from contraport.training.loop import Callback, Loop
from contraport.training.step.training_module import MinedBatchLayout, TrainingModule

log = logging.getLogger("contraport.training")


class NegativeMiner(Callback):
    """Callback that mines hard negatives and adds them to later batches.

    There is one table of negatives if each item has one stored view, whose random views are the positives; else one
    for each view, mined for the first other view. An item with too few negatives gets itself, which the loss excludes.

    Args:
        spec: how the negatives are mined, or the file that has them.
        loader_config: loads the items for a mining.

    Raises:
        UsageError: the file does not have integers ``(items, k)``, positions of other items or -1.
    """

    def __init__(self, spec: MinedNegativesSpec, dataset: Dataset, *, seed: int, loader_config: LoaderConfig) -> None:
        self._spec, self._dataset, self._seed = spec, dataset, seed
        self._loader_config = loader_config
        num_views = len(dataset.shapes)
        tables = num_views if num_views > 1 else 1
        items = np.arange(len(dataset))[:, None]
        if spec.file is not None:
            negatives = read_npy("negatives", spec.file)
            good = negatives.ndim == 2 and len(negatives) == len(items) and negatives.shape[1] > 0
            good = good and negatives.dtype.kind in "iu" and negatives.min() >= -1 and negatives.max() < len(items)
            message = (
                f"negatives: {spec.file} must have integers from -1 to {len(items) - 1} of shape ({len(items)}, k), "
                f"one row per training item, got {negatives.dtype} of shape {negatives.shape}."
            )
            check(good, message, "shape")
            negatives = negatives.astype(np.int64)  # -1 stands for none
            self._positions = np.tile(np.where(negatives < 0, items, negatives), tables)
        else:
            message = f"negatives: k: must be below {len(items)}, the number of training items, got {spec.rule.k}."
            check(spec.rule.k < len(items), message, "too_many")
            random = numpy_generator("negatives.random", seed)
            drawn = random.integers(1, max(2, len(items)), size=(len(items), tables * spec.rule.k))
            self._positions = (items + drawn) % len(items)  # of other items
        self.layout = MinedBatchLayout(self._positions.shape[1] // tables, tables)
        self._mined_epoch = -1

    def send_negatives_to_loader(self, loader: ClosableDataLoader | StreamLoader) -> None:
        """Add mined negatives to the next batches; random negatives before the first mining."""
        order = loader.batch_sampler
        assert isinstance(order, BatchOrder)
        order.insert_companions(self._positions)

    def on_start(self, loop: Loop) -> None:
        # Set even if none are mined: a feature cache has a loader of its own, and a checkpoint has its own negatives.
        self._mine_if_due_then_send(loop)

    def after_epoch(self, loop: Loop) -> None:
        if loop.completed_epochs < loop.epochs:
            self._mine_if_due_then_send(loop)

    def state(self) -> dict[str, Any]:
        """Return the mined negatives' positions and epoch, for a checkpoint."""
        return {"epoch": self._mined_epoch, "positions": torch.from_numpy(self._positions)}

    def restore(self, state: dict[str, Any]) -> None:
        self._mined_epoch, self._positions = state["epoch"], state["positions"].numpy()

    def _mine_if_due_then_send(self, loop: Loop) -> None:
        """Mine negatives if they are due, then pass the latest ones to the loader."""
        epoch, spec = loop.completed_epochs, self._spec
        elapsed = epoch - spec.epochs_before_mining
        is_due = spec.file is None and elapsed >= 0 and elapsed % spec.epochs_between_minings == 0
        # A run resumed within an epoch has its negatives already, mined by the encoder at the start of the epoch.
        if is_due and self._mined_epoch < epoch:
            with stop_all_on_error():
                # Processes could differ in the last bits and then mine different items, so only the first one does.
                if is_main_process():
                    self._positions = self._mine_negative_positions(cast(TrainingModule, loop.module), epoch)
            self._positions, self._mined_epoch = broadcast_object(self._positions), epoch
        self.send_negatives_to_loader(loop.batches)

    def _mine_negative_positions(self, module: TrainingModule, epoch: int) -> np.ndarray:
        """Return the positions of mined negatives, one row per item."""
        model, dataset = module.model, self._dataset
        loader_config = self._loader_config._replace(device=next(model.parameters()).device)
        embedded = embed_views(model, dataset, module.views, loader_config, project=True, view_kind="unaugmented")
        ids = dataset.view_content_ids_if_repeated
        tables, num_found = [], 0
        for view in range(self.layout.num_sets_per_item):
            anchor = 0 if self.layout.num_sets_per_item == 1 else int(view == 0)
            numbers = [None if ids is None else ids[:, one] for one in (anchor, view)]
            mined = mine_hard_negatives(
                embedded[anchor], embedded[view], self._spec.rule,
                anchor_content_ids=numbers[0], candidate_content_ids=numbers[1], seed=self._seed + epoch,
            )  # fmt: skip
            num_found += int((mined.positions >= 0).sum())
            own = torch.arange(len(dataset))[:, None]
            tables.append(torch.where(mined.positions < 0, own, mined.positions))
        positions = torch.cat(tables, dim=1)
        log.info("Epoch %d: mined %.1f negatives of each item and view.", epoch, num_found / len(dataset) / len(tables))
        if num_found == 0:
            log.warning(
                "negatives: the margins and limits exclude all items, so that this epoch has no mined negatives; "
                "start=N mines from epoch N on, relative_margin=0 excludes fewer items"
            )
        return positions.numpy()
