"""Builds the components of a training run from its settings: data, batches, objective, networks, training module.

`contraport.train`, `load_failed_step`, the evaluation of a run and the estimators all build their components here.
"""
