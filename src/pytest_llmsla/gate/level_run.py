"""One level of load kept up for a gate, from the crew that asks to its last reading of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..load import Driver, crew_of
from ..runner import BucketPlan
from ..targets.base import Crew, Target
from .plans import Plans
from .record import Record
from .sinks import LevelSink
from .told import told


def run_level(
    record: Record,
    plans: Plans,
    target: Target,
    level: int | None,
    buckets: Sequence[BucketPlan],
    seconds: float,
    wants: Callable[[str], bool],
) -> str:
    """Ask until no bucket is wanted any more, or ``seconds`` or a budget is spent.

    Returns:
        Why it ended, as :meth:`load.Driver.run` says it.

    Raises:
        LlmslaError: the requests in flight cannot be prepared, or the target is gone.
    """
    crew = _crew(record, plans, target, level)
    try:
        writer = record.run.writer
        now = target.clock()
        writer.line(plans.level_line(level, crew.mode, now - writer.origin_ns))
        for keeper in record.attempts.each():
            keeper.opened(level, now, segment=writer.current, mode=crew.mode)
        sink = LevelSink(record, target, level)
        driver = Driver(target, crew, sink, record.run.next_id)
        try:
            ended = driver.run(plans.level(level, buckets, seconds), wants)
        except BaseException:
            # What was answered until then has its reading of memory, as at any other end.
            sink.read_memory([plan.bucket for plan in buckets])
            raise
        facts = getattr(crew, "facts", None)
        if facts is not None:
            at = target.clock() - writer.origin_ns
            line = plans.level_line(level, crew.mode, at)
            writer.line({**line, "ended": ended, "facts": dict(facts())})
        return ended
    finally:
        crew.close()


def _crew(record: Record, plans: Plans, target: Target, level: int | None) -> Crew:
    size = plans.size(level, target)
    where = record.loaded.policy.load.workers
    with told(f"preparing {size} requests at once"):
        if where == "local":
            return crew_of(target, size, plans.timeouts)
        from ..load.ray_crew import RayCrew

        record.run.progress.say(f"starting the workers of {where} …")
        spec = record.loaded.target_spec()
        return RayCrew(target, spec, size, plans.timeouts, address=where)
