"""What happened and when: one :class:`Timeline` per request, the only currency between rooms.

Times are integer nanoseconds of the target's monotonic clock (``_ns``); milliseconds appear
only at the edges (``_ms``). Definitions: docs/metrics.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import Any, Literal, overload

Status = Literal["ok", "error"]
TokenSource = Literal["usage_continuous", "usage_final", "model", "tokenizer", "events"]
Stamp = Literal["kernel", "user", "host"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

PEAK = "tgs-peak"
"""Purpose of the requests that measure peak TGS; they are no bucket's evidence."""

NOT_FORCED = "length not forced"
"""Prefix of the note of a target that cannot force the output length."""

DISPUTED = "prompt length disputed"
"""Prefix of the note of a request whose prompt two counts find of different length."""

FIRST_UNSURE = "the first one may hold no token"
"""Part of an estimate's reason: what came first may have been a sign of life instead of a token."""

REPEATED = "prompt repeated"
"""Prefix of the note of a request whose prompt was sent before in the same gate."""


OWN_PROMPT = "prompt of the test's own"
"""Prefix of the note of a request to a server whose prompt was not made for this run."""


class Arrivals(Sequence[tuple[int, int]]):
    """``(t_ns, tokens)`` pairs, equal to the tuple of them, in eight bytes a token.

    As tuples a token takes a hundred, and an hour of many streams has millions.

    Raises:
        OverflowError: a time is over 64 bits.
    """

    __slots__ = ("_times", "_tokens")

    _times: Sequence[int]
    _tokens: Sequence[int] | None

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        times, tokens = tuple(zip(*pairs, strict=True)) or ((), ())
        self._times = array("q", times)
        # Nearly every arrival of nearly every stream is one token.
        self._tokens = None if tokens.count(1) == len(tokens) else array("q", tokens)

    def moved(self, keep: Callable[[array[int]], Sequence[int]]) -> Arrivals:
        """The same arrivals, their numbers where ``keep`` puts them."""
        other = Arrivals()
        other._times, other._tokens = self._times, self._tokens
        if isinstance(self._times, array):
            other._times = keep(self._times)
        if isinstance(self._tokens, array):
            other._tokens = keep(self._tokens)
        return other

    def __reduce__(self) -> tuple[type[Arrivals], tuple[tuple[tuple[int, int], ...]]]:
        return Arrivals, (tuple(self),)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, index: slice) -> Arrivals: ...

    def __getitem__(self, index: int | slice) -> tuple[int, int] | Arrivals:
        tokens = self._tokens
        if isinstance(index, slice):
            part = Arrivals()
            part._times = self._times[index]
            part._tokens = None if tokens is None else tokens[index]
            return part
        return self._times[index], 1 if tokens is None else tokens[index]

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._times, repeat(1) if self._tokens is None else self._tokens, strict=False)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Arrivals, tuple)):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request from acceptance to its last token.

    ``arrivals`` holds ``(t_ns, tokens)``: the moment token ids reached the host, and how many
    (:class:`Arrivals` where many are kept).
    ``status == "error"`` keeps whatever arrived before the failure, but no sample of it is used.
    """

    id: str
    bucket: str
    start_ns: int
    end_ns: int
    arrivals: Sequence[tuple[int, int]] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_new_tokens: int = 0
    token_source: TokenSource | None = None
    finish_reason: str | None = None
    status: Status = "ok"
    error: str | None = None
    scheduled_ns: int | None = None
    warmup: bool = False
    unit: int = 0
    """Index of the statistical unit (a block of ``concurrency`` starts) inside its bucket."""
    concurrency: int = 1
    """Requests that were to be in flight together; open loop: in flight when this one was due."""
    block: int = 1
    """Size of its statistical unit: consecutive starts that are judged as one."""
    late_ns: int | None = None
    """Open loop: how late the client itself sent it, waiting for a free place not included."""
    attempt: int = 1
    segment: int = 0
    stages: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds per stage: tokenise, queue, cache_init, prefill, first_sample, decode, sample…"""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cached_tokens: int | None = None
    stamp: Stamp = "host"
    estimated: str | None = None
    """Why the tokens of the arrivals are an estimate; None when each is where it belongs."""
    first_visible_ns: int | None = None
    """First arrival of content a user sees (not reasoning, not a tool call); None: not told."""
    retries: int = 0
    """Attempts before this answer that the server refused; the clock ran on."""
    merged: int = 0
    """Arrivals that came in one read with the one before and share its stamp."""
    lag_ns: int | None = None
    """P95 of how late the client's own loop was during this request; None in-process."""
    server_ms: Mapping[str, float] = field(default_factory=dict)
    """The server's own times of this request, ms, where it tells them: ``prefill``, ``decode``."""
    gate: str | None = None
    """None for the gate of the sla.yaml; a test's node id for a gate of its own."""
    purpose: str | None = None
    """None for a bucket's evidence; :data:`PEAK` for requests that belong to TGS only."""
    notes: tuple[str, ...] = ()
    text: str | None = None
    """The answer's text. In memory for ordinary asserts; stored only under ``keep_text``."""
    prompt: str | None = None

    @property
    def ok(self) -> bool:
        """True when the request ended without error."""
        return self.status == "ok"

    @property
    def level(self) -> int | None:
        """The level of load it belongs to: requests in flight together; None: open loop."""
        return self.concurrency if self.scheduled_ns is None else None

    @property
    def due_ns(self) -> int:
        """When its clock begins, ns: the scheduled time (open loop), else the start."""
        return self.start_ns if self.scheduled_ns is None else self.scheduled_ns

    @property
    def ttft_ns(self) -> int | None:
        """First arrival minus :attr:`due_ns`; None without a token."""
        return self.arrivals[0][0] - self.due_ns if self.arrivals else None

    @property
    def ttft_ms(self) -> float | None:
        """TTFT in milliseconds, None when no token arrived."""
        ns = self.ttft_ns
        return None if ns is None else ns / NS_PER_MS

    def chunk_gaps_ns(self) -> list[int]:
        """Raw gaps between consecutive arrivals, ns; empty with fewer than two arrivals."""
        times = [at for at, _ in self.arrivals]
        return [b - a for a, b in pairwise(times)]

    def itl_ns(self) -> list[float]:
        """Inter-token latencies, ns: an arrival of k tokens after a gap g gives k samples of g/k.

        Extra tokens of the first arrival give no sample.
        """
        out: list[float] = []
        for (before, _), (at, k) in pairwise(self.arrivals):
            if k == 1:
                out.append(float(at - before))
            elif k > 0:
                out.extend([(at - before) / k] * k)
        return out

    def itl_ms(self) -> list[float]:
        """:meth:`itl_ns` in milliseconds."""
        return [g / NS_PER_MS for g in self.itl_ns()]

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first arrival, ms; None with no such token."""
        later = self.tokens - (self.arrivals[0][1] if self.arrivals else 0)
        if later <= 0:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later / NS_PER_MS

    @property
    def tokens(self) -> int:
        """Tokens counted at arrival."""
        return sum(k for _, k in self.arrivals)
