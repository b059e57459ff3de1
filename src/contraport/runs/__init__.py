"""Run folders: reading and writing the files of a training."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.runs.run import MetricsRow, Run, as_different_runs, as_run, read_run_file
    from contraport.runs.run_folder import default_path

__all__ = ["MetricsRow", "Run", "as_different_runs", "as_run", "default_path", "read_run_file"]

_OF_RUN = ("MetricsRow", "Run", "as_different_runs", "as_run", "read_run_file")
make_package_lazy(__name__, default_path="run_folder", **dict.fromkeys(_OF_RUN, "run"))
