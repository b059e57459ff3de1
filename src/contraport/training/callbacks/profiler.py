"""Callback that profiles some steps of a training run."""

from __future__ import annotations

import logging

from torch.profiler import ProfilerActivity, profile, schedule

from contraport._utils.files import atomic_write, write_text
from contraport.runs import WritableRun
from contraport.training.loop import PROFILED_SECTION_NAMES, Callback, Loop

log = logging.getLogger("contraport.training")


class ProfilerCallback(Callback):
    """Callback that writes a profile of ten steps to the run folder."""

    def __init__(self, run: WritableRun) -> None:
        self._run = run
        self._profiler: profile | None = None

    def on_start(self, loop: Loop) -> None:
        activities = [ProfilerActivity.CPU]
        if loop.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=5, warmup=2, active=10, repeat=1),
            on_trace_ready=self._write_profile,
        )
        self._profiler.start()

    def after_batch(self, loop: Loop) -> None:
        if self._profiler is not None and loop.completed_micro_batches == 0:
            self._profiler.step()

    def on_end(self, loop: Loop) -> None:
        # A session shorter than the recorded steps is recorded up to its end.
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        if not self._run.profile_path.exists():
            log.warning("profile: nothing was recorded; it requires more than 7 steps.")

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        # The files of a failed session are not written.
        if self._profiler is not None:
            self._profiler.on_trace_ready = None
            self._profiler.stop()
            self._profiler = None

    def _write_profile(self, profiler: profile) -> None:
        """Write the profile, and log the share of CPU time of each part of the training."""
        events = profiler.key_averages()
        where = "cuda" if ProfilerActivity.CUDA in profiler.activities else "cpu"
        with self._run.translate_write_errors():
            self._run.profile_path.mkdir(exist_ok=True)
            with atomic_write(self._run.profile_path / "trace.json") as temporary:
                profiler.export_chrome_trace(str(temporary))
            table = events.table(sort_by=f"self_{where}_time_total", row_limit=30)
            write_text(self._run.profile_path / "steps.txt", table)
        seconds = {event.key: event.cpu_time_total / 1e6 for event in events if event.key in PROFILED_SECTION_NAMES}
        total = sum(seconds.values())
        shares = ", ".join(f"{name} {seconds.get(name, 0) / total:.0%}" for name in PROFILED_SECTION_NAMES)
        log.info("CPU time of 10 steps: %s; see %s", shares, self._run.profile_path)
