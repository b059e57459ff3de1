"""Builds the data, networks and objective of a training run.

`contraport.train`, `load_failed_step`, the evaluation of a run and the estimators all build their components here.
"""
