"""Betting wealth: how much evidence a series of requests holds for PASS and for FAIL.

A gambler bets on every request that the share of samples over the limit is ``c`` times the
allowed share ``p0``. If the bet is wrong the expected wealth cannot grow, so a wealth of 1/α
has a probability of at most α however often one looks (Ville's inequality; betting after
Waudby-Smith & Ramdas 2023). Several bets are mixed with fixed weights.

With d = (S − p0·n)/M and slope(c) = (c−1)/(1+(c−1)·p0), a bet multiplies wealth by

    1 + slope(c)·d  =  (1 + (c−1)·x) / (1 + (c−1)·p0),     x = p0·(1 − n/M) + S/M.

The right-hand form is used: it is exactly 0 where the bet is lost, with no rounding left over.
``x`` is the share of the M possible samples that exceeded, those that never came counted at
the neutral p0; it lies in [0, 1], and a failed request has x = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

Bets = tuple[tuple[float, float], ...]

PASS_BETS: Bets = ((0.0, 0.4), (0.25, 0.4), (0.5, 0.2))
"""(c, weight): the share over the limit is none, a quarter, half of what is allowed."""

FAIL_BETS: Bets = ((2.0, 0.25), (4.0, 0.25), (16.0, 0.25), (math.inf, 0.25))
"""(c, weight): twice, four times, sixteen times what is allowed; always."""


@lru_cache(maxsize=8192)
def factor_logs(x: float, p0: float, bets: Bets) -> tuple[float, ...]:
    """Log of the factor one unit with effective share ``x`` applies to each bet's wealth."""
    return tuple(_factor_log(x, p0, c) for c, _ in bets)


def _factor_log(x: float, p0: float, c: float) -> float:
    factor = x / p0 if math.isinf(c) else (1 + (c - 1) * x) / (1 + (c - 1) * p0)
    return math.log(factor) if factor > 0 else -math.inf


def mixture_log(log_wealths: Sequence[float], bets: Bets) -> float:
    """log Σ weight·W by log-sum-exp; finite as long as one bet still holds wealth."""
    terms = [math.log(w) + lw for (_, w), lw in zip(bets, log_wealths, strict=True)]
    top = max(terms)
    if math.isinf(top):
        return top
    return top + math.log(math.fsum(math.exp(t - top) for t in terms))


def log_e_of_series(shares: Sequence[float], p0: float, bets: Bets) -> float:
    """log E of units with effective shares ``shares``, added one by one as the live gate does."""
    totals = [0.0] * len(bets)
    for x in shares:
        for i, step in enumerate(factor_logs(x, p0, bets)):
            totals[i] += step
    return mixture_log(totals, bets)


def log_e_of_counts(clean: float, over: int, p0: float, bets: Bets, fill: float = 1.0) -> float:
    """log E of ``clean`` units with nothing over and ``over`` units wholly over the limit.

    ``fill`` is n/M of the clean units. For planning; the gate itself adds unit by unit.
    """
    good = factor_logs(p0 * (1 - fill), p0, bets)
    bad = factor_logs(1.0, p0, bets)
    totals = [
        (clean * g if clean else 0.0) + (over * b if over else 0.0)
        for g, b in zip(good, bad, strict=True)
    ]
    return mixture_log(totals, bets)


def scaled(log_e: float, h: float) -> float:
    """Evidence after the guard: h takes from positive evidence and never adds any."""
    return h * log_e if log_e > 0 else log_e
