"""timelines.jsonl: typed lines, flushed one by one, enough to reproduce a verdict exactly.

Line types: ``run`` (first), ``gate`` (a Python test's own policy), ``target`` (facts of a loaded
target), ``segment`` (a clock's origin in UTC), ``level`` (a level of load begins), ``start``,
``request``, ``resources``, ``server`` (what a server said of itself), ``tgs`` (a figure measured
elsewhere), ``problem`` (why a bucket could not be measured), ``resume`` (what follows continues
what stands before, in another process), ``end``, ``outcomes`` (what the test runner said).
Times are nanoseconds since their segment's origin. What each line holds: :mod:`request_lines`,
:mod:`other_lines`.
"""

from __future__ import annotations

from .reader import RunLog, read_run
from .writer import SCHEMA, RunWriter, utc_now

__all__ = ["SCHEMA", "RunLog", "RunWriter", "read_run", "utc_now"]
