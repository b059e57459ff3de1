"""Run the benchmarks: ``python -m benchmarks [--full]``.

Without ``--full`` a few minutes: all losses at 256 ... 8,192 rows in 128 dimensions. With it, also 16,384 rows,
64 and 768 dimensions, and the growth up to 65,536 rows with the peak memory, and the plot of it.
"""

import argparse

from benchmarks import cuda, engine, plot, startup, training

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--full", action="store_true", help="the whole series: about an hour")
full = parser.parse_args().full
engine.main(["--rows", "256", "512", "2048", "8192"])
if full:
    engine.main(["--rows", "16384"])
    engine.main(["--rows", "512", "2048", "8192", "--dimensions", "64", "768"])
    for arguments in plot.GROWTH:
        engine.main(arguments)
    plot.main()
cuda.main([])
training.main([])
startup.main([])
