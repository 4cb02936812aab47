"""Any engine a team can call from Python: an iterator, or an async iterator, of token ids."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from inspect import isawaitable
from types import GeneratorType
from typing import Any

from ..errors import TargetError, UsageError
from ..timeline import NOT_FORCED
from .base import Answer, Ask, Clock, Recorder
from .entry import resolve_entry

_LOOP_ENDS_S = 5.0


class PythonTarget:
    """Wraps ``generate(prompt, *, max_new_tokens, sampling)`` → (async) iterator of token ids.

    An item is one token id, or a list of ids that reached the host together. An engine may also
    offer ``tokenizer`` (``encode`` and ``decode``), ``count(prompt, system) -> int``, ``memory()``,
    ``describe()``, ``close()`` and, for a clock of its own, ``clock_ns()`` (whole nanoseconds).
    Strings are refused: a text piece is not a token, so ITL could not be measured. An iterator
    that goes on after the tokens asked for is left there, and the request is an error. Under load
    a plain engine is called from several threads at once, an async one on one event loop.
    """

    kind = "python"
    start_point = "request handed to generate() in-process"

    def __init__(
        self,
        engine: Any,
        *,
        entry: str = "",
        max_context: int | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.engine = engine
        self._generate = engine.generate if hasattr(engine, "generate") else engine
        if not callable(self._generate):
            raise UsageError(
                f"target.entry {entry!r}: the factory returned {type(engine).__name__}; valid: an "
                "object with generate(prompt, *, max_new_tokens, sampling), or such a callable."
            )
        self.tokenizer = tokenizer if tokenizer is not None else getattr(engine, "tokenizer", None)
        self._entry = entry
        self._max_context = max_context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._together: threading.Thread | None = None
        self._probe: Any = None

    @classmethod
    def load(
        cls, spec: Mapping[str, Any], *, say: Callable[[str], None] = lambda _: None
    ) -> PythonTarget:
        """Call the factory that ``entry`` names.

        Raises:
            UsageError: no entry, or it makes nothing that can generate.
            TargetError: the factory raised.
        """
        entry = spec.get("entry")
        if not entry:
            raise UsageError("target.kind python needs target.entry: 'package.module:factory'.")
        factory = resolve_entry(str(entry), "target.entry")
        say(f"calling {entry} …")
        try:
            engine = factory()
        except Exception as e:
            raise TargetError(f"target.entry {entry!r} raised {type(e).__name__}: {e}") from e
        name, tokenizer = spec.get("tokenizer"), None
        if name:
            tokenizer = _tokenizer(str(name))
        return cls(
            engine, entry=str(entry), max_context=spec.get("max_context"), tokenizer=tokenizer
        )

    @property
    def clock(self) -> Clock:
        """The process's monotonic clock, or the engine's own ``clock_ns`` when it has one."""
        own = getattr(self.engine, "clock_ns", None)
        return own if callable(own) else time.perf_counter_ns

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report; the engine's own ``describe()`` is added."""
        own = getattr(self.engine, "describe", None)
        facts = dict(own()) if callable(own) else {}
        return {"model": self._entry, "warnings": [], **facts, "kind": self.kind}

    def count(self, prompt: str, system: str | None = None) -> int:
        """Tokens of the prompt by the engine's ``count``, else its tokenizer.

        Raises:
            UsageError: neither is there, so no prompt length is known (rule 1 needs it).
        """
        own = getattr(self.engine, "count", None)
        if callable(own):
            return _whole(own(prompt, system))
        ids = self.encode(prompt if system is None else f"{system}\n{prompt}")
        if ids is None:
            raise UsageError(
                "rule 1 needs prompt lengths, and this engine cannot tell them. Give it "
                "count(prompt, system) -> int or a tokenizer, or set target.tokenizer."
            )
        return len(ids)

    def encode(self, text: str) -> list[int] | None:
        """Ids of bare text, None without a tokenizer."""
        if self.tokenizer is None:
            return None
        try:
            ids = self.tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            ids = self.tokenizer.encode(text)
        return list(getattr(ids, "ids", ids))

    def max_context(self) -> int | None:
        """As declared by ``target.max_context``."""
        return self._max_context

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """Drive the engine's iterator, stamping each item as it is handed over.

        Raises:
            TargetError: it yields something that is not a token id, or returns no iterator.
        """
        kwargs: dict[str, Any] = {
            "max_new_tokens": ask.max_new_tokens,
            "sampling": dict(ask.sampling),
        }
        if ask.system is not None:
            kwargs["system"] = ask.system
        made = self._generate(ask.prompt, **kwargs)
        ids: list[int] = []
        # The commonest engine first: each look at an abstract class is time before the first token.
        plain = type(made) is GeneratorType
        if not plain and (isinstance(made, AsyncIterator) or isawaitable(made)):
            drained = _drain(made, record, ids, ask.max_new_tokens)
            if self._together is not None:
                asyncio.run_coroutine_threadsafe(drained, self._own_loop()).result()
            else:
                self._own_loop().run_until_complete(drained)
        elif plain or isinstance(made, Iterator):
            try:
                for item in made:
                    record.arrive(_tokens(item, ids))
                    if len(ids) > ask.max_new_tokens:
                        break
            finally:
                # The engine's own clean-up runs now, not in the middle of a later request.
                if isinstance(made, Generator):
                    made.close()
        else:
            raise TargetError(
                f"generate() returned {type(made).__name__}; valid: an iterator or async iterator "
                "of token ids (an answer that is not streamed has no TTFT and no ITL)."
            )
        text = ""
        if self.tokenizer is not None and hasattr(self.tokenizer, "decode"):
            text = str(self.tokenizer.decode(ids))
        forced = len(ids) >= ask.max_new_tokens or not ask.force_length
        return Answer(
            text=text,
            prompt_tokens=self.count(ask.prompt, ask.system),
            output_tokens=len(ids),
            token_source="model",
            finish_reason="length" if len(ids) >= ask.max_new_tokens else "stop",
            notes=() if forced else (f"{NOT_FORCED}: a python engine decides its own length",),
        )

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        # A loop of its own, in the runner's worker thread: the caller's loop stays untouched.
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        return self._loop

    def together(self, many: bool) -> None:
        """Requests come from several threads from now on, or from one again.

        An async engine lives on one event loop: while many come, that loop runs in a thread of its
        own and takes them all.
        """
        if many == (self._together is not None):
            return
        loop = self._own_loop()
        if many:
            self._together = threading.Thread(
                target=loop.run_forever, name="llmsla-engine-loop", daemon=True
            )
            self._together.start()
            return
        thread, self._together = self._together, None
        loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join(timeout=_LOOP_ENDS_S)

    def reset_peaks(self) -> None:
        """Start the window of memory peaks."""
        self._memory_probe().reset()

    def memory(self) -> Mapping[str, Any]:
        """The engine's own ``memory()``, else this process's resident memory."""
        own = getattr(self.engine, "memory", None)
        return dict(own()) if callable(own) else dict(self._memory_probe().read())

    def _memory_probe(self) -> Any:
        if self._probe is None:
            from ..probes.memory import MemoryProbe

            self._probe = MemoryProbe("cpu")
        return self._probe

    def close(self) -> None:
        """Close the loop and the engine (``close()`` when it has one). Idempotent."""
        self.together(False)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.close()
        done = getattr(self.engine, "close", None)
        if callable(done):
            done()


async def _drain(made: Any, record: Recorder, ids: list[int], most: int) -> None:
    if isawaitable(made):
        made = await made
    if not isinstance(made, AsyncIterator):
        raise TargetError(
            f"generate() gave {type(made).__name__} when awaited; valid: an async iterator of "
            "token ids."
        )
    try:
        async for item in made:
            record.arrive(_tokens(item, ids))
            if len(ids) > most:
                break
    finally:
        if isinstance(made, AsyncGenerator):
            await made.aclose()


def _whole(tokens: Any) -> int:
    try:
        if isinstance(tokens, bool):
            raise TypeError
        return operator.index(tokens)
    except TypeError:
        raise TargetError(
            f"the engine's count() gave {tokens!r:.60}; valid: a whole number of tokens"
        ) from None


def _tokens(item: object, ids: list[int]) -> int:
    # Engines use -1 for "no token" and padding: counted, it would be a token nobody got.
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        ids.append(item)
        return 1
    if isinstance(item, (list, tuple)) and item:
        total = 0
        for one in item:
            total += _tokens(one, ids)
        return total
    if hasattr(item, "tolist"):  # a tensor or array of ids; scalars become ints
        return _tokens(item.tolist(), ids)
    raise TargetError(
        f"generate() yielded {item!r:.60} ({type(item).__name__}); valid: a token id (a whole "
        "number from 0) or a non-empty list of ids. A text piece is not a token, so ITL cannot be "
        "measured from it."
    )


def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as e:
        raise UsageError(
            f"target.tokenizer {name!r} needs transformers: "
            "pip install 'pytest-llmsla[transformers]'."
        ) from e
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as e:
        raise TargetError(f"target.tokenizer {name!r} cannot be loaded: {e}") from e
