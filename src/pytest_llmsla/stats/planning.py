"""What a gate will cost and what it can tell, worked out before anything is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UsageError
from .samples import allowed_share
from .spec import check_quantile, check_share
from .wealth import FAIL_BETS, PASS_BETS, log_e_of_counts


def clean_units_to_pass(quantile: float, alpha_pass: float, fill: float = 1.0) -> int:
    """Units with nothing over the limit that a PASS takes: 69 for P95 at 0.05, 349 for P99.

    ``fill`` in (0, 1] is mean n / M: answers shorter than the longest possible one cost
    requests. Raises :class:`UsageError` for values outside (0, 1).
    """
    check_quantile(quantile)
    check_share("alpha_pass", alpha_pass, "0.05 is the preset normal")
    if fill != 1:
        check_share("fill", fill, "mean samples of a request divided by max_samples")
    p0, need = allowed_share(quantile), -math.log(alpha_pass)

    def passes(n: int) -> bool:
        return log_e_of_counts(n, 0, p0, PASS_BETS, fill) >= need

    high = 1
    while not passes(high):
        high *= 2
    low = high // 2  # does not pass
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (low, mid) if passes(mid) else (mid, high)
    return high


def least_over_to_fail(
    units: int, quantile: float, alpha_fail: float, min_fail: int = 5
) -> int | None:
    """Least number of the first ``units`` units, wholly over the limit, that give FAIL by then.

    None when no number does. Guard taken as 1.
    """
    check_quantile(quantile)
    check_share("alpha_fail", alpha_fail, "0.01 is the default")
    if units < min_fail:
        return None
    p0, need = allowed_share(quantile), -math.log(alpha_fail)
    for over in range(units + 1):
        if log_e_of_counts(units - over, over, p0, FAIL_BETS) >= need:
            return over
    return None


@dataclass(frozen=True)
class OperatingPoint:
    """How a gate ends when a share ``share`` of requests is over the limit. Probabilities 0–1."""

    share: float
    passes: float
    fails: float
    undecided: float
    mean_units: float
    """Expected units until the decision or the end of the budget."""


def operating_characteristic(
    share: float,
    quantile: float = 0.95,
    alpha_pass: float = 0.05,
    alpha_fail: float = 0.01,
    max_units: int = 300,
    min_fail: int = 5,
) -> OperatingPoint:
    """Exact probabilities of the first decision for independent requests of one sample each.

    ``share`` in [0, 1] is the true share of requests over the limit. Without the guard, whose
    factor is near 1 for independent requests. Sums over all paths (units so far, over so far)
    that have not decided; cost O(max_units²).
    """
    check_quantile(quantile)
    check_share("alpha_pass", alpha_pass, "0.05 is the preset normal")
    check_share("alpha_fail", alpha_fail, "0.01 is the default")
    if not 0 <= share <= 1:
        raise UsageError(f"share: got {share!r}; valid is 0 to 1; write 2 % as 0.02")
    p0 = allowed_share(quantile)
    need_pass, need_fail = -math.log(alpha_pass), -math.log(alpha_fail)
    alive = {0: 1.0}
    passes = fails = mean = 0.0
    for n in range(1, max_units + 1):
        nxt: dict[int, float] = {}
        for k, mass in alive.items():
            nxt[k] = nxt.get(k, 0.0) + mass * (1 - share)
            nxt[k + 1] = nxt.get(k + 1, 0.0) + mass * share
        alive = {}
        for k, mass in nxt.items():
            if mass == 0.0:
                continue
            if log_e_of_counts(n - k, k, p0, PASS_BETS) >= need_pass:
                passes += mass
                mean += mass * n
            elif n >= min_fail and log_e_of_counts(n - k, k, p0, FAIL_BETS) >= need_fail:
                fails += mass
                mean += mass * n
            else:
                alive[k] = mass
    left = math.fsum(alive.values())
    return OperatingPoint(share, passes, fails, left, mean + left * max_units)
