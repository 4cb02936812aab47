"""A target that follows a script on a clock of its own: exact times, nothing waits.

For tests of gates and of this package. A report made from it says that no model was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from zlib import crc32

from ..errors import UsageError
from ..timeline import NS_PER_MS
from .base import Answer, Ask, Clock, Recorder, Timeouts
from .entry import resolve_entry
from .scripted_crew import Part, ScriptedCrew

_PIECE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")


@dataclass(frozen=True)
class Script:
    """One scripted answer.

    ``arrivals`` are (delay since the previous event in ms, tokens). ``prompt_tokens`` and
    ``output_tokens`` override what is counted; ``error`` ends the request after the arrivals.
    """

    arrivals: Sequence[tuple[float, int]] = ()
    error: str | BaseException | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = "length"
    text: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None


Play = Callable[[Ask, int], Script]


class ScriptedTarget:
    """Plays ``play(ask, index)`` for the index-th request (0-based, warm-up included)."""

    kind = "scripted"
    start_point = "request accepted by the script"

    def __init__(
        self,
        play: Play,
        facts: Mapping[str, Any] | None = None,
        *,
        slots: int | None = None,
    ) -> None:
        self._slots = slots
        self._play = play
        self._facts = dict(facts or {})
        self._now = 0
        self._index = 0

    @classmethod
    def load(
        cls, spec: Mapping[str, Any], *, say: Callable[[str], None] = lambda _: None
    ) -> ScriptedTarget:
        """From ``entry: pkg.mod:factory`` (→ ``play``) or an inline ``script`` mapping."""
        entry, script = spec.get("entry"), spec.get("script")
        if entry:
            made = resolve_entry(str(entry), "target.entry")()
            if isinstance(made, cls):
                return made
            if not callable(made):
                raise UsageError(
                    f"target.entry {entry!r}: the factory returned {type(made).__name__}; valid: "
                    "a callable play(ask, index) -> Script, or a ScriptedTarget."
                )
            return cls(cast("Play", made), {"entry": entry})
        if not script:
            raise UsageError("target.kind scripted needs target.script or target.entry.")
        return cls(from_mapping(script), {"script": dict(script)})

    @property
    def clock(self) -> Clock:
        """Virtual nanoseconds: they pass only while a script plays."""
        return lambda: self._now

    def advance(self, ms: float) -> None:
        """Let virtual time pass."""
        self._now += round(ms * NS_PER_MS)

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report, with the warning that this is no model."""
        return {
            "kind": self.kind,
            "model": "script",
            **self._facts,
            "warnings": [
                {"code": "scripted", "message": "times come from a script: no model was measured"}
            ],
        }

    def count(self, prompt: str, system: str | None = None) -> int:
        """Pieces: words, single CJK characters and punctuation marks. No template."""
        return len(_PIECE.findall(prompt)) + len(_PIECE.findall(system or ""))

    def encode(self, text: str) -> list[int] | None:
        """A stable id per piece."""
        return [crc32(piece.encode("utf-8", "surrogatepass")) for piece in _PIECE.findall(text)]

    def max_context(self) -> int | None:
        """Scripts have no context limit."""
        return None

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """Play the next script. Raises what the script says."""
        part = self._part(ask)
        for delay_ms, tokens in part.arrivals:
            self.advance(delay_ms)
            record.arrive(tokens)
        for name, ns in part.stages_ns.items():
            record.stage(name, ns)
        if isinstance(part.outcome, BaseException):
            raise part.outcome
        return part.outcome

    def crew(self, size: int, timeouts: Timeouts) -> ScriptedCrew:
        """Scripts played together: at most ``slots`` of them at once, where that is given."""
        return ScriptedCrew(
            self._part, self.clock, self._set_clock, size, timeouts, slots=self._slots
        )

    def _set_clock(self, at_ns: int) -> None:
        self._now = at_ns

    def _part(self, ask: Ask) -> Part:
        """The next script, with what comes of it."""
        script = self._play(ask, self._index)
        self._index += 1
        stages = {name: round(ms * NS_PER_MS) for name, ms in script.stages_ms.items()}
        return Part(tuple(script.arrivals), self._outcome(ask, script), stages)

    def _outcome(self, ask: Ask, script: Script) -> Answer | BaseException:
        if isinstance(script.error, BaseException):
            return script.error
        if script.error is not None:
            return RuntimeError(script.error)
        counted = sum(tokens for _, tokens in script.arrivals)
        prompt_tokens = script.prompt_tokens
        return Answer(
            text=script.text,
            prompt_tokens=self.count(ask.prompt, ask.system)
            if prompt_tokens is None
            else prompt_tokens,
            output_tokens=counted if script.output_tokens is None else script.output_tokens,
            token_source="model",
            finish_reason=script.finish_reason,
            cached_tokens=script.cached_tokens,
        )

    def reset_peaks(self) -> None:
        """Nothing to reset."""

    def memory(self) -> Mapping[str, Any]:
        """Resident memory of this process."""
        from ..probes.memory import MemoryProbe

        return dict(MemoryProbe("cpu").read())

    def close(self) -> None:
        """Nothing to release."""


def from_mapping(script: Mapping[str, Any]) -> Play:
    """``play`` of an inline script: ``ttft_ms`` and ``itl_ms`` may be lists, cycled by request.

    ``tokens`` (default: as many as asked), ``tokens_per_chunk``, ``fail`` (request indexes) and
    ``error`` as in docs/reference.md.
    """
    ttft, itl = _cycle(script["ttft_ms"]), _cycle(script.get("itl_ms", 1.0))
    chunk = int(script.get("tokens_per_chunk") or 1)
    failing = frozenset(script.get("fail") or ())
    error = script.get("error") or "scripted failure"
    fixed = script.get("tokens")

    def play(ask: Ask, index: int) -> Script:
        if index in failing:
            return Script(error=str(error))
        total = ask.max_new_tokens if fixed is None else int(fixed)
        gap = itl[index % len(itl)]
        arrivals: list[tuple[float, int]] = []
        left = total
        while left > 0:
            k = min(chunk, left)
            arrivals.append((gap * k if arrivals else ttft[index % len(ttft)], k))
            left -= k
        return Script(
            arrivals=arrivals,
            finish_reason="length" if total >= ask.max_new_tokens else "stop",
            text="scripted",
        )

    return play


def _cycle(value: Any) -> list[float]:
    return [float(v) for v in value] if isinstance(value, (list, tuple)) else [float(value)]
