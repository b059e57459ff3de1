"""What all HTML pages share: each is one file that opens without a network, in light and in dark."""

from contraport.pages.frame import render
from contraport.pages.pictures import Drawing, drawings, image, uri

__all__ = ["Drawing", "drawings", "image", "render", "uri"]
