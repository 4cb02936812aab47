"""Resources over time, sampled while a gate measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..asker import say
from ..log import RunWriter
from ..probes.sampler import Sampler, Source
from ..probes.usage import host_source
from ..targets.base import Target


@contextmanager
def sampled(
    target: Target, writer: RunWriter, gate: str | None, tell: Callable[[str], None]
) -> Iterator[None]:
    """Write ``resources`` lines of phase ``sample`` until the context ends.

    A target on a clock of its own has none: samples of this machine have no place on it.
    """
    if target.clock is not time.perf_counter_ns:
        yield
        return
    origin, segment = writer.origin_ns, writer.current

    def write(said: Mapping[str, Any]) -> None:
        columns = dict(said["columns"])
        columns["t_ns"] = [at - origin for at in columns["t_ns"]]
        writer.line(
            {
                "type": "resources",
                "gate": gate,
                "bucket": None,
                "purpose": None,
                "phase": "sample",
                "segment": segment,
                "t_ns": columns["t_ns"][-1],
                "memory": {},
                **said,
                "columns": columns,
            }
        )

    with Sampler([host_source(), *_of(target, tell)], write, say=tell):
        yield


def _of(target: Target, tell: Callable[[str], None]) -> list[Source]:
    """What else a target knows of what it runs on."""
    own = getattr(target, "samples", None)
    if own is None:
        return []
    try:
        return list(own())
    except Exception as e:  # figures beside the evidence: without them the gate is the same
        tell(f"the target's resources are not sampled: {say(e)}")
        return []
