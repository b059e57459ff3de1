"""What all HTML pages share: each is one file that opens without a network, in light and in dark."""

from contraport.pages.frame import render
from contraport.pages.pictures import image, uri

__all__ = ["image", "render", "uri"]
