"""What a target is: something that answers one prompt while a recorder stamps its tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import GenerationAborted
from ..timeline import TokenSource

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as sent. ``sampling`` uses the keys of sla.yaml's ``workload.sampling``."""

    prompt: str
    max_new_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    force_length: bool = False
    """Ask for exactly ``max_new_tokens``; a target that cannot says so in ``Answer.notes``."""
    ids: tuple[int, ...] | None = None
    """Raw prompt ids for gates on ids (``python`` targets); overrides ``prompt`` when given."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, besides the times the recorder holds."""

    text: str
    prompt_tokens: int | None
    output_tokens: int | None
    token_source: TokenSource | None
    finish_reason: str | None
    """``stop`` (EOS), ``length`` (max_new_tokens reached) or the server's own word."""
    cached_tokens: int | None = None
    notes: tuple[str, ...] = ()


class Recorder:
    """Stamps one request. The hot path is :meth:`arrive`: one clock call and one append.

    A recorder is used by one thread; :meth:`cancel` may be called from another.
    """

    __slots__ = ("_cancelled", "arrivals", "clock", "end_ns", "stages", "start_ns")

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self.clock = clock
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.arrivals: list[tuple[int, int]] = []
        self.stages: dict[str, int] = {}
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Stamp the moment the request is accepted, before tokenisation."""
        self.start_ns = self.clock()

    def arrive(self, tokens: int = 1) -> None:
        """``tokens`` token ids are on the host now.

        Raises:
            GenerationAborted: the deadline has passed; the exception ends the generation.
        """
        self.arrivals.append((self.clock(), tokens))
        if self._cancelled.is_set():
            raise GenerationAborted("stopped after its deadline")

    def stage(self, name: str, ns: int) -> None:
        """Add ``ns`` nanoseconds to stage ``name``."""
        self.stages[name] = self.stages.get(name, 0) + ns

    def cancel(self) -> None:
        """Make the next :meth:`arrive` raise."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """True once :meth:`cancel` was called."""
        return self._cancelled.is_set()


@runtime_checkable
class Target(Protocol):
    """The thing under test.

    ``generate`` is called in one worker thread, one request at a time, with ``record.start()``
    already stamped. It raises on failure: the runner turns any exception into an error result.
    """

    kind: str
    start_point: str
    """Where TTFT's clock starts, in words: ``request accepted in-process``."""

    @property
    def clock(self) -> Clock:
        """The monotonic nanosecond clock of this target (virtual for scripted targets)."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report: model, revision, hash, dtypes and bytes, warnings. JSON-ready."""
        ...

    def count(self, prompt: str, system: str | None = None) -> int:
        """Tokens of the rendered prompt, chat template included."""
        ...

    def encode(self, text: str) -> list[int] | None:
        """Ids of bare user text, no special tokens; None when the target has no tokenizer."""
        ...

    def max_context(self) -> int | None:
        """Longest prompt plus output the model takes, tokens; None when unknown."""
        ...

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """Answer one prompt, calling ``record.arrive`` for every token as it reaches the host."""
        ...

    def reset_peaks(self) -> None:
        """Start the measured window of memory peaks (after warm-up)."""
        ...

    def memory(self) -> Mapping[str, Any]:
        """Named figures in GiB: allocated_peak, reserved_peak, device_used_peak, rss_peak …

        A figure that cannot be read is None with its reason under ``<name>_reason``.
        """
        ...

    def close(self) -> None:
        """Release the model. Idempotent."""
        ...
