"""The views of a batch, made at random of images, time series and vectors."""

from contraport.data.views.views import Views

__all__ = ["Views"]
