"""Profiler callback: records some training steps with torch's profiler, as a trace and a table of times."""

from __future__ import annotations

import logging

from torch.profiler import ProfilerActivity, profile, schedule

from contraport._utils.files import atomic_write, write_text
from contraport.runs import Run
from contraport.training.loop import SECTIONS, Callback, Loop

SKIPPED = 5
"""Number of steps that are skipped: in the first steps kernels are chosen and memory is allocated."""

WARMUP_STEPS = 2
"""Number of warmup steps of the profiler."""

RECORDED_STEPS = 10

TABLE_ROWS = 30

log = logging.getLogger("contraport.training")


class ProfilerCallback(Callback):
    """Callback that profiles some steps of a session; writes `profile/trace.json` and `profile/steps.txt`.

    Args:
        run: the run folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._profiler: profile | None = None

    def on_start(self, loop: Loop) -> None:
        activities = [ProfilerActivity.CPU]
        if loop.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=SKIPPED, warmup=WARMUP_STEPS, active=RECORDED_STEPS, repeat=1),
            on_trace_ready=self._write,
        )
        self._profiler.start()

    def after_batch(self, loop: Loop) -> None:
        if self._profiler is not None and loop.completed_micro_batches == 0:
            self._profiler.step()

    def on_end(self, loop: Loop) -> None:
        """Stop the profiler; a session shorter than the recorded steps is recorded up to its end."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        if not self._run.profile_path.exists():
            log.warning("profile: nothing was recorded; it requires more than %d steps.", SKIPPED + WARMUP_STEPS)

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """Stop the profiler without writing its files."""
        if self._profiler is not None:
            self._profiler.on_trace_ready = None
            self._profiler.stop()
            self._profiler = None

    def _write(self, profiler: profile) -> None:
        events = profiler.key_averages()
        where = "cuda" if ProfilerActivity.CUDA in profiler.activities else "cpu"
        with self._run.translate_write_errors():
            self._run.profile_path.mkdir(exist_ok=True)
            with atomic_write(self._run.profile_path / "trace.json") as temporary:
                profiler.export_chrome_trace(str(temporary))
            write_text(
                self._run.profile_path / "steps.txt",
                events.table(sort_by=f"self_{where}_time_total", row_limit=TABLE_ROWS),
            )
        seconds = {event.key: event.cpu_time_total / 1e6 for event in events if event.key in SECTIONS}
        total = sum(seconds.values())
        shares = ", ".join(f"{name} {seconds.get(name, 0) / total:.0%}" for name in SECTIONS)
        log.info("CPU time of %d steps: %s; see %s", RECORDED_STEPS, shares, self._run.profile_path)
