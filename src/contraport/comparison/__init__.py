"""Objectives compared on a grid of settings and seeds, so that the table can be believed.

```
compare        the verb
asked          what is asked -> the grid
entries        a row or a column in words -> its name and options
suites         comparisons kept in a file, with what is claimed of them
grid           rows, columns and seeds -> the cells
tuning         own settings of each objective, searched with equally many trials
running        cells trained and judged, several at once, within a budget, going on where they were stopped
statistics     how sure a mean over seeds and a paired difference are
results        what was found: the entries of the table, and the verdicts on claims
tables         the table, its sentences and the verdicts as they are told: Markdown, CSV, JSON
page           all of it on one page
```
"""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
    from contraport.comparison.compare import compare
    from contraport.comparison.comparison_tables import Comparison

__all__ = ["Comparison", "compare"]

make_package_lazy(__name__, compare="compare", Comparison="comparison_tables")
