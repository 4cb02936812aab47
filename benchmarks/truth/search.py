"""The highest rate of events at which a client is still exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

MOST_STRETCH = 0.05
"""The error of an answer's duration up to which a rate counts, as a share of it."""
GOAL_MS = 1.0
"""The error of gaps up to which a rate counts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One try at one rate."""

    offered: float
    """Token events a second in all streams, as planned."""
    rate: float
    """As sent."""
    gap_ms: float
    error_p95_ms: float | None
    """Of gaps; of requests' means where a client has no gaps."""
    late_p95_ms: float
    """Of the server: over :data:`GOAL_MS`, or over a gap, a failure says nothing of the client."""
    behind_s: float | None = None
    """How long the client still worked after the last token; kernel stamps hide it."""
    flow_s: float = 1.0
    lost: int = 0
    miscounted: int = 0
    stalls: int = 0
    cpu_ms_per_event: float | None = None
    merged: int | None = None
    span_error_p95: float | None = None
    """Of the time from first to last token, as a share of it."""
    quiet: bool = True
    """Little else ran on the machine."""

    @property
    def limit_ms(self) -> float:
        """1 ms, and half a gap where that is less: a larger error would be no measurement."""
        return min(GOAL_MS, self.gap_ms / 2)

    @property
    def kept(self) -> bool:
        """True when the server kept its schedule, or the client is what kept it from it."""
        if self.stalls or self.lost:
            return True
        return self.late_p95_ms <= min(GOAL_MS, self.gap_ms) and self.rate >= 0.95 * self.offered

    @property
    def sound(self) -> bool:
        """True when a failure is the client's: the server kept its schedule, little else ran."""
        return self.kept and self.quiet

    @property
    def held(self) -> bool:
        """True when the client saw every token and was within the limit."""
        return self.kept and self._within(self.limit_ms)

    @property
    def within_goal(self) -> bool:
        """By 1 ms alone: where gaps are short, what merges tokens passes as well.

        The truth is when the server sent, and the rate is as sent: it need not have been in time.
        """
        return self._within(GOAL_MS)

    def _within(self, limit_ms: float) -> bool:
        return (
            self.error_p95_ms is not None
            and self.error_p95_ms <= limit_ms
            and (self.span_error_p95 is None or self.span_error_p95 <= MOST_STRETCH)
            and not (self.lost or self.miscounted or self.stalls)
        )

    @property
    def in_time(self) -> bool | None:
        """True when all was parsed soon after the last token; None where that is not known.

        It decides nothing: the tools do not tell, and stamps stay true when parsing comes later.
        """
        return None if self.behind_s is None else self.behind_s <= 0.05 * self.flow_s


def search(
    attempt: Callable[[float], Step],
    *,
    start: float,
    factor: float,
    top: float,
    floor: float,
    tries: int,
    refine: int = 0,
) -> list[Step]:
    """Rise from ``start`` by ``factor`` until a rate fails; fall from it if it fails itself.

    A rate fails when none of ``tries`` sound attempts held. As many again may be unsound; a rate
    with too few sound ones ends the rise, as nothing is known of it. At last ``refine`` more
    rates are tried, each half-way between the best and the lowest that did not hold.
    """
    steps: list[Step] = []

    def holds(rate: float) -> bool | None:
        sound = 0
        for _ in range(2 * tries):
            step = attempt(rate)
            steps.append(step)
            if step.held:
                return True
            sound += step.sound
            if sound == tries:
                return False
        return None

    rate, answer = start, holds(start)
    rising = answer
    while answer is not None and answer is rising:
        following = rate * factor if rising else rate / factor
        if not floor * 0.9999 <= following <= top * 1.0001:
            return steps
        rate, answer = following, holds(following)
    if answer is None and not rising:
        return steps
    good, bad = (rate / factor, rate) if rising else (rate, rate * factor)
    for _ in range(refine):
        middle = (good * bad) ** 0.5
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return steps


def rise(
    attempt: Callable[[float], Step],
    steps: list[Step],
    *,
    factor: float,
    top: float,
    tries: int,
    refine: int = 0,
) -> None:
    """Try rates above those of ``steps`` while they hold by 1 ms alone; the tries are added.

    At last ``refine`` more, half-way between the best and the lowest that did not hold.
    """

    def holds(rate: float) -> bool:
        for _ in range(tries):
            steps.append(attempt(rate))
            if steps[-1].within_goal:
                return True
        return False

    rate = max(s.offered for s in steps)
    while rate * factor <= top * 1.0001 and any(s.within_goal for s in steps if s.offered == rate):
        rate *= factor
        holds(rate)
    for _ in range(refine):
        best = within_goal(steps)
        above = [s.offered for s in steps if best is not None and s.offered > best.offered]
        if best is not None and above:
            holds((best.offered * min(above)) ** 0.5)


def within_goal(steps: Iterable[Step]) -> Step | None:
    """:func:`highest` by 1 ms alone."""
    return highest(steps, lambda step: step.within_goal)


def highest(
    steps: Iterable[Step], holds: Callable[[Step], bool] = lambda step: step.held
) -> Step | None:
    """The fastest try that held, below the first rate at which none did.

    Whatever else runs on the machine can make a try fail; nothing can make one hold.
    """
    by_rate: dict[float, list[Step]] = {}
    for step in steps:
        by_rate.setdefault(step.offered, []).append(step)
    best: Step | None = None
    for offered in sorted(by_rate):
        held = [s for s in by_rate[offered] if holds(s)]
        if not held:
            break
        best = max(held, key=lambda s: s.rate)
    return best


def highest_in_time(steps: Iterable[Step]) -> float | None:
    """Events a second up to which a client also parsed in time; None where it does not tell."""
    return max((s.rate for s in steps if s.held and s.in_time), default=None)


def why(above: Iterable[Step]) -> str:
    """What ended the search: the reason of the lowest rate above the best."""
    steps = list(above)
    if not steps:
        return "no higher rate was tried"
    lowest = min(s.offered for s in steps)
    tried = [s for s in steps if s.offered == lowest]
    sound = [s for s in tried if s.sound]
    if not sound:
        return f"at {lowest:.0f} the server did not keep its schedule, or the machine was busy"
    last = sound[-1]
    if last.lost or last.miscounted:
        said = "answers were lost or miscounted"
    elif last.stalls:
        said = "the client's buffers were full"
    elif last.error_p95_ms is None:
        said = "it reports no gaps"
    elif last.error_p95_ms <= last.limit_ms:
        said = f"answers seemed {(last.span_error_p95 or 0) * 100:.0f} % longer or shorter"
    else:
        said = f"P95 was {last.error_p95_ms:.2f} ms"
    return f"at {lowest:.0f} {said}"
