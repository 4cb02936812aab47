"""How requests come in: ``workload.load``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StrictStr, model_serializer

from .keys import (
    COUNT,
    Keys,
    NotNegative,
    Text,
    key,
)

OPEN = ("constant", "poisson", "gamma", "trace")
"""Kinds of load that come by a schedule, whatever is in flight: open loop."""

MOST_RATE = 100_000.0
"""Requests/s, at most: beyond what any client sends, times of a schedule fall together."""
MOST_PLACES = 65_536
"""Requests in flight, at most: as many as one machine has connections to one address."""
SHAPES = (0.01, 1_000.0)
"""Shapes of gamma gaps: under the first nearly all requests come at once, over the last evenly."""
WEIGHTS = (1e-6, 1e6)
"""Weights of a mix: farther apart, a bucket's next request is never due."""

_Rate = Annotated[float, Field(strict=True, gt=0, le=MOST_RATE, allow_inf_nan=False)]
_Shape = Annotated[float, Field(strict=True, ge=SHAPES[0], le=SHAPES[1], allow_inf_nan=False)]
_Weight = Annotated[float, Field(strict=True, ge=WEIGHTS[0], le=WEIGHTS[1], allow_inf_nan=False)]
_Places = Annotated[int, Field(strict=True, ge=1, le=MOST_PLACES)]
_SHORT_SHA = 12


class Load(Keys):
    """How requests come in: so many in flight (closed loop), or by a schedule (open loop)."""

    kind: Literal["closed", "constant", "poisson", "gamma", "trace"] = key(
        "closed",
        "closed, constant, poisson, gamma or trace",
        "closed: tgs.concurrency requests in flight; the others come by a schedule (open loop).",
    )
    rate: _Rate | None = key(
        None,
        f"a number of requests per second over 0, at most {MOST_RATE:.0f}, or null",
        "Open loop: mean rate; a trace is stretched to it, null: as recorded.",
    )
    burstiness: _Shape | None = key(
        None,
        f"a number from {SHAPES[0]:g} to {SHAPES[1]:g}, or null",
        "gamma: shape of the gaps; 1 is Poisson, less comes in bursts.",
    )
    trace: Text | None = key(
        None, "the path of a file, or null", "trace: timestamps, one a request; relative path."
    )
    trace_unit: Literal["s", "ms"] | None = key(
        None, "s, ms or null", "Unit of the trace's timestamps; null: as its columns say."
    )
    trace_sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")] | None = key(
        None,
        "64 hexadecimal digits, or null",
        "Of the trace's file; null: filled in when it is loaded. Another content is refused.",
    )
    max_in_flight: _Places | None = key(
        None,
        f"{COUNT} to {MOST_PLACES}, or null",
        "Open loop: most requests in flight; the others wait, clock on.",
    )
    ramp_s: NotNegative = key(
        0.0, "a number of seconds from 0", "The load grows to its full size over this time."
    )
    mix: dict[Text, _Weight] | None = key(
        None,
        f"a mapping {{bucket: number from {WEIGHTS[0]:f} to {WEIGHTS[1]:.0f}}} of every bucket, "
        "or null",
        "Share of the buckets in what is asked; null: equal.",
    )
    workers: Annotated[StrictStr, Field(pattern=r"^(local|ray|ray://[^\s/]+)$")] = key(
        "local", "local, ray or ray://host:port", "Where requests are sent from."
    )

    @property
    def open(self) -> bool:
        """True for open loop: a schedule that does not wait for answers."""
        return self.kind != "closed"

    @property
    def bursty(self) -> bool:
        """True where requests come in bursts, or may: gamma with a shape under 1, a trace."""
        return self.kind == "trace" or (self.kind == "gamma" and (self.burstiness or 1.0) < 1)

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without ``trace_sha256`` where there is none: policies without a trace, and with them
        the hash by which their logs are known, are what they were before the key."""
        out: dict[str, Any] = handler(self)
        if out.get("trace_sha256") is None:
            out.pop("trace_sha256", None)
        return out

    @property
    def words(self) -> str:
        """``open loop, 3 requests/s``, ``open loop, trace day.csv (sha256 0f3a…), 3 requests/s``;
        closed: ``closed loop``."""
        if not self.open:
            return "closed loop"
        out = "open loop"
        if self.kind == "trace":
            out += f", trace {self.trace}"
            if self.trace_sha256 is not None:
                out += f" (sha256 {self.trace_sha256[:_SHORT_SHA]})"
        return out if self.rate is None else f"{out}, {self.rate:g} requests/s"
