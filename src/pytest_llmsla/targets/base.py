"""What a target is: something that answers one prompt while a recorder stamps its tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import GenerationAborted
from ..timeline import Stamp, Timeline, TokenSource

Clock = Callable[[], int]

SAMPLING_KEYS = (
    "greedy",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
"""Keys of sla.yaml's ``workload.sampling``; a target refuses those that it cannot express."""


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
    estimated: str | None = None
    first_visible_ns: int | None = None
    server_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; ``first_token_s`` and ``idle_s`` bound silence, ``total_s`` the whole request.

    ``grace_s`` is how long a generation that was told to stop may take to do so.
    """

    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 300.0
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send, and the timeline that will carry it: all but times and answer."""

    ask: Ask
    blank: Timeline


class Crew(Protocol):
    """Keeps many requests on their way at once, for one calling thread.

    A target offers ``crew(size, timeouts) -> Crew``; one that does not is asked in threads
    (:class:`pytest_llmsla.load.ThreadCrew`). A crew that sends from elsewhere has ``lead_ns``: so
    long before it is due it wants a request, and sends it when it is. A crew may tell ``facts()``
    of itself for the report.
    """

    size: int
    """Most requests in flight together."""
    mode: str
    """How they share the model, for the report: ``threads``, ``continuous``, ``batch``, ``http``,
    ``ray``, ``script``."""

    @property
    def in_flight(self) -> int:
        """Requests started and not yet returned by :meth:`wait`."""
        ...

    @property
    def hung(self) -> str | None:
        """Why the target cannot be used any more; None when it can."""
        ...

    def prepare(self, ask: Ask) -> Ask:
        """What has to be done before the clock starts and may take its time, done.

        Raises:
            LlmslaError: the request cannot be made.
        """
        ...

    def start(self, job: Job) -> None:
        """Send it now; returns at once. Whatever goes wrong is in the timeline of the request.

        Raises:
            InternalError: ``size`` requests are in flight already.
        """
        ...

    def wait(self, until_ns: int | None = None) -> list[Timeline]:
        """Those that ended, in the order they did.

        Returns when at least one has, when the target's clock shows ``until_ns``, or at once
        when nothing is in flight and ``until_ns`` is None. With nothing in flight it waits for
        ``until_ns`` (a virtual clock is moved there).
        """
        ...

    def cancel(self) -> None:
        """End what is in flight as errors; :meth:`wait` returns them."""
        ...

    def close(self) -> None:
        """Release what the crew holds, not the target. Idempotent."""
        ...


class Recorder:
    """Stamps one request. The hot path is :meth:`arrive`: one clock call and one append.

    A recorder is used by one thread; :meth:`cancel` may be called from another. A target that
    stamps by itself (over HTTP) sets ``start_ns`` and ``arrivals``, and says how by ``stamp``.
    """

    __slots__ = (
        "_cancelled",
        "arrivals",
        "clock",
        "end_ns",
        "lag_ns",
        "merged",
        "retries",
        "stages",
        "stamp",
        "start_ns",
    )

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self.clock = clock
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.arrivals: list[tuple[int, int]] = []
        self.stages: dict[str, int] = {}
        self.stamp: Stamp = "host"
        self.retries = 0
        self.merged = 0
        self.lag_ns: int | None = None
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
    A target with a true attribute ``keeps_deadlines`` ends a request at its deadlines itself.
    Many requests at once go through a :class:`Crew`.
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
