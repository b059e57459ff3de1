"""Which pairs are compared?"""

from contraport.objectives.layouts.block import Block, Pattern
from contraport.objectives.layouts.coordinates import Coordinates
from contraport.objectives.layouts.layout import Layout, Traits
from contraport.objectives.layouts.many_views import CoreView, FullGraph, Within
from contraport.objectives.layouts.over import Guided, Leading
from contraport.objectives.layouts.two_views import Cross, Joint

__all__ = [
    "Block",
    "Coordinates",
    "CoreView",
    "Cross",
    "FullGraph",
    "Guided",
    "Joint",
    "Layout",
    "Leading",
    "Pattern",
    "Traits",
    "Within",
]
