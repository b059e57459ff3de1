"""Run folders: reading and writing the files of a training."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.runs.run import MetricsRow, Run, load, read_run_file
    from contraport.runs.run_folder import WritableRun, as_different_run_folders, as_run_folder, default_run_path

__all__ = [
    "MetricsRow",
    "Run",
    "WritableRun",
    "as_different_run_folders",
    "as_run_folder",
    "default_run_path",
    "load",
    "read_run_file",
]

make_package_lazy(
    __name__,
    MetricsRow="run",
    Run="run",
    load="run",
    read_run_file="run",
    RunFolder="run_folder",
    WritableRun="run_folder",
    as_different_run_folders="run_folder",
    as_run_folder="run_folder",
    default_run_path="run_folder",
)
