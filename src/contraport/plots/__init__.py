"""Figures of what one has in hand: tensors, arrays and the folders of runs, as matplotlib figures (extra ``report``).

Each function returns a `matplotlib.figure.Figure` of its own, to be shown by a notebook or written by ``.savefig``;
none touches pyplot. `contraport.theory` draws its studies with the same hands, and `contraport.report` shares the
colours and the numbers.

>>> from contraport import plots
>>> plots.curves({"nt-xent": [3.0, 2.0, 1.5]}, width=3.9).get_size_inches().tolist()
[3.9, 2.909...]
"""

from contraport.plots.curves import curves
from contraport.plots.feature_plots import embedding, neighbors, spectrum
from contraport.plots.plan_plots import couplings, plan

__all__ = ["couplings", "curves", "embedding", "neighbors", "plan", "spectrum"]
