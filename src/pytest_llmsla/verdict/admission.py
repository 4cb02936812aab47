"""Whether a request counts: sound by itself, and alone where one at a time is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..policy import Policy
from ..rules.checks import Range, defect
from ..timeline import Timeline


def ranges_of(policy: Policy) -> dict[str, Range]:
    """The buckets' prompt lengths by name."""
    return {
        b.name: Range(b.name, b.prompt_min, b.prompt_max, b.measured_to) for b in policy.buckets
    }


def as_judged(t: Timeline, bad: str | None) -> Timeline:
    """``t`` with status ``error`` where ``bad`` says why it counts as failed."""
    return replace(t, status="error", error=bad) if bad is not None and t.ok else t


class Admission:
    """Looks at every request of a gate in start order, whatever it is for."""

    def __init__(self, ranges: Mapping[str, Range], max_new_tokens: int) -> None:
        self._ranges = ranges
        self._max_new_tokens = max_new_tokens
        self._busy: tuple[int, int, str] | None = None
        """Clock segment, ns and id: how long the request that ended last was in flight."""

    def of_bucket(self, t: Timeline, *, alone: bool) -> str | None:
        """Why a bucket's request counts as failed; None: it is sound.

        ``alone``: its level is of one request at a time.
        """
        bad = defect(t, self._ranges[t.bucket])
        if alone:
            bad = bad or self._overlap(t)
        self.passed(t)
        most = self._max_new_tokens
        if not t.warmup and t.max_new_tokens > most and bad is None:
            bad = (
                f"{t.max_new_tokens} tokens were asked for, the policy judges {most} "
                "(workload.max_new_tokens)"
            )
        return bad

    def of_peak(self, t: Timeline) -> str | None:
        """Why a request for peak TGS counts as failed; None: it is sound."""
        bad = defect(t, None) or self._overlap(t)
        if t.ok and bad is None and t.concurrency != 1:
            bad = f"it was one of {t.concurrency} in flight; peak TGS is that of one"
        self.passed(t)
        return bad

    def passed(self, t: Timeline) -> None:
        """The model was busy with ``t``, counted or not."""
        busy = self._busy
        if busy is None or busy[0] != t.segment or t.end_ns >= busy[1]:
            self._busy = (t.segment, t.end_ns, t.id)

    def _overlap(self, t: Timeline) -> str | None:
        """Where one request at a time is judged, all before it must have ended."""
        busy = self._busy
        if busy is None or busy[0] != t.segment or t.start_ns >= busy[1]:
            return None
        return (
            f"it began before request {busy[2]} had ended: they shared the model, and one at a "
            "time is judged"
        )
