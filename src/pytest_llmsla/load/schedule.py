"""When requests are due: absolute offsets from the start of a level, whatever the service does.

Seeded, so that the same policy offers the same load. Times are ns, rates requests/s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from random import Random

from ..errors import UsageError
from ..timeline import NS_PER_S

SHAPES = ("constant", "poisson", "gamma")


def arrivals(
    kind: str, rate: float, *, seed: int, burstiness: float | None = None, ramp_s: float = 0.0
) -> Iterator[int]:
    """Due times of an open loop, ns from its start, ascending, without end.

    Args:
        kind: ``constant`` (equal gaps), ``poisson`` (exponential gaps), ``gamma`` (gamma gaps of
            shape ``burstiness``: 1 is Poisson, under 1 is burstier).
        rate: mean requests/s, once the ramp is over.
        seed: of the gaps.
        burstiness: shape of the gamma distribution.
        ramp_s: seconds during which the rate grows linearly from 0.

    Raises:
        UsageError: a kind, rate or burstiness that is not valid.
    """
    if kind not in SHAPES:
        raise UsageError(f"load kind is {kind!r}; valid: {', '.join(SHAPES)}")
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"load rate is {rate!r}; valid: requests per second greater than 0")
    shape = 1.0 if burstiness is None else burstiness
    if not (math.isfinite(shape) and shape > 0):
        raise UsageError(f"load burstiness is {burstiness!r}; valid: a number greater than 0")
    return _due(_expected(kind, shape, Random(f"arrivals {seed}")), rate, ramp_s)


def _expected(kind: str, shape: float, rng: Random) -> Iterator[float]:
    """Due times of a process of rate 1: how many requests are expected until each of them."""
    if kind == "constant":
        yield from (float(k) for k in itertools.count())
        return
    at = 0.0
    while True:
        # Mean 1: a gamma distribution of this shape has mean shape × scale.
        at += rng.expovariate(1.0) if kind == "poisson" else rng.gammavariate(shape, 1 / shape)
        yield at


def _due(expected: Iterator[float], rate: float, ramp_s: float) -> Iterator[int]:
    """Stretch a process of rate 1 so that its rate is ``rate``, reached linearly in ``ramp_s``.

    During the ramp the expected count at t is rate·t²/(2·ramp), after it rate·(t − ramp/2).
    """
    in_ramp = rate * ramp_s / 2
    for count in expected:
        if count < in_ramp:
            seconds = math.sqrt(2 * count * ramp_s / rate)
        else:
            seconds = count / rate + ramp_s / 2
        yield round(seconds * NS_PER_S)
