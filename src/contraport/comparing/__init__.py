"""Objectives compared on a grid of settings and seeds, so that the table can be believed.

```
compare        the verb
grid           rows, columns and seeds: what is asked -> the cells; suites
tuning         own settings of each objective, searched with equally many trials
running        cells trained and judged, several at once, within a budget, going on where they were stopped
statistics     how sure a mean over seeds and a paired difference are
results        the table, its sentences, and what it says of claims
page           all of it on one page
```
"""

from contraport.comparing.compare import compare
from contraport.comparing.results import Comparison

__all__ = ["Comparison", "compare"]
