"""Matplotlib figures of tensors, arrays and run folders (extra ``report``).

Each function returns a new `matplotlib.figure.Figure`, which a notebook displays and ``.savefig`` writes. None uses
pyplot. The page of `contraport.report` draws in the browser instead, with the same colors and numbers.

>>> from contraport import plots
>>> plots.curves({"nt-xent": [3.0, 2.0, 1.5]}, width=3.9).get_size_inches().tolist()
[3.9, 2.909...]
"""

from contraport.options import keep_deprecated_module_names
from contraport.plots.curves import curves
from contraport.plots.feature_plots import embedding, nearest_items, spectrum
from contraport.plots.plan_plots import barycentric_maps_1d, couplings, plan

__all__ = ["barycentric_maps_1d", "couplings", "curves", "embedding", "nearest_items", "plan", "spectrum"]

__getattr__ = keep_deprecated_module_names(__name__, arrow_maps="barycentric_maps_1d", neighbors="nearest_items")
