"""Random views of images, time series, vectors and texts."""

from contraport.data.views.views import Views

__all__ = ["Views"]
