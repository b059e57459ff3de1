"""Run folders: reading and writing the files of a training."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.runs.run import MetricsRow, Run, load, read_run_file
    from contraport.runs.writable_run import WritableRun, as_different_run_folders, as_run_folder, default_run_path

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
    RunFolder="writable_run",
    WritableRun="writable_run",
    as_different_run_folders="writable_run",
    as_run_folder="writable_run",
    default_run_path="writable_run",
)
