"""What a test asks for: its bucket measured, one timed call, prompts, the model, a TGS record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from ..errors import LlmslaError, UsageError
from .state import GATE, MEASURING
from .stopping import stoppable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..finding import Finding
    from ..session import Gate
    from ..targets import Target
    from ..timeline import Timeline
    from ..workload import Prompt
    from .measuring import Measuring

_T = TypeVar("_T")

NEED_MARK = ("sla_run", "timed_generate", "sla_prompts")
ALL = (*NEED_MARK, "sla_model", "record_tgs")


class SlaResult(list["Timeline"]):
    """The measured requests of one ``sla_run()``, in start order, with what they show."""

    def __init__(self, timelines: Iterable[Timeline], findings: tuple[Finding, ...]) -> None:
        super().__init__(timelines)
        self.findings = findings
        """Every limit of this test, judged on all requests on record so far."""


class SlaRun:
    """Call it to measure the mark's bucket until every limit is decided."""

    def __init__(self, gate: Gate, alone: Lock) -> None:
        self._gate = gate
        self._alone = alone

    def __call__(self, **overrides: Any) -> SlaResult:
        """Warm up and ask the bucket's prompts.

        Args:
            overrides: ``max_new_tokens`` or ``sampling`` for these requests.

        Raises:
            UsageError: an override that is not known.
            TargetError: the model cannot be loaded.
        """
        __tracebackhide__ = True
        with self._alone:
            try:
                with stoppable():
                    timelines = self._gate.run(**overrides)
            except LlmslaError as e:
                raise _bare(e) from _behind(e)
            return SlaResult(timelines, tuple(self._gate.findings()))

    async def aio(self, **overrides: Any) -> SlaResult:
        """The same for ``async def`` tests: measures in a thread, the event loop stays free."""
        __tracebackhide__ = True
        return await _in_thread(self, **overrides)


class TimedGenerate:
    """Call it with a prompt to ask the model once, timed. The first call warms up before it.

    Calls from several threads or tasks are made one after the other: what is measured is one
    request at a time.
    """

    def __init__(self, gate: Gate, alone: Lock) -> None:
        self._gate = gate
        self._alone = alone

    def __call__(self, prompt: str, **overrides: Any) -> Timeline:
        """Ask ``prompt`` once.

        Args:
            prompt: user text; its rendered length must lie in the mark's bucket.
            overrides: ``max_new_tokens`` or ``sampling`` for this request.

        Returns:
            The request's :class:`~pytest_llmsla.timeline.Timeline`; a failed request is one with
            ``status == "error"``, it does not raise.

        Raises:
            UsageError: an override that is not known, or a prompt that is not text.
            TargetError: the model cannot be loaded.
        """
        __tracebackhide__ = True
        with self._alone:
            try:
                with stoppable():
                    return self._gate.ask(prompt, **overrides)
            except LlmslaError as e:
                raise _bare(e) from _behind(e)

    async def aio(self, prompt: str, **overrides: Any) -> Timeline:
        """The same for ``async def`` tests: generates in a thread, the event loop stays free."""
        __tracebackhide__ = True
        return await _in_thread(self, prompt, **overrides)


def _bare(e: LlmslaError) -> LlmslaError:
    """``e`` without our frames: the test's own line and the message say it all."""
    return e.with_traceback(None)


def _behind(e: LlmslaError) -> BaseException | None:
    """An engine's own exception behind ``e``; a usage error has said it all."""
    return None if isinstance(e, UsageError) else e.__cause__


async def _in_thread(call: Callable[..., _T], *args: Any, **overrides: Any) -> _T:
    from asyncio import to_thread  # 20 ms that suites without async gates need not pay

    __tracebackhide__ = True
    try:
        return await to_thread(call, *args, **overrides)
    except LlmslaError as e:
        raise _bare(e) from _behind(e)


class RecordTgs:
    """Call it to put a TGS figure measured elsewhere on the record, with its four conditions."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(
        self,
        value: float,
        *,
        prompt_lengths: Any = None,
        sampling: Any = None,
        concurrency: Any = None,
        memory: Any = None,
    ) -> None:
        """Record ``value`` tokens per second.

        Args:
            value: tokens per second, finite and above 0.
            prompt_lengths: tokens, such as ``"100-500"`` or ``[128, 512]``.
            sampling: a dict such as ``{"temperature": 0.8}`` or words such as ``"greedy"``.
            concurrency: requests in flight.
            memory: the figure and what it is, such as ``"5.1 GiB, allocated peak"``.

        Fails the test when a condition is missing: a figure without it cannot be compared (rule 3).
        """
        _measuring(self._request).record_tgs(
            self._request.node,
            value,
            {
                "prompt_lengths": prompt_lengths,
                "sampling": sampling,
                "concurrency": concurrency,
                "memory": memory,
            },
        )


class _Prompts(Iterator["Prompt"]):
    """Prompts whose end, of a file that is used up, is told like any other usage error."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts = prompts

    def __next__(self) -> Prompt:
        __tracebackhide__ = True
        try:
            return next(self._prompts)
        except LlmslaError as e:
            raise _bare(e) from _behind(e)


def _measuring(request: pytest.FixtureRequest) -> Measuring:
    found: Measuring | None = request.config.stash.get(MEASURING, None)
    if found is None:
        pytest.fail(
            f"{request.fixturename} was asked for while the tests ran, too late to plan for. Name "
            "it among the arguments of the test or of a fixture.",
            pytrace=False,
        )
    return found


def _gate(request: pytest.FixtureRequest) -> tuple[Gate, Lock]:
    name = request.fixturename
    if GATE not in request.node.stash:
        pytest.fail(
            f"{name} needs a mark that says what to measure: add @sla(prompt_max=128, "
            "ttft_ms=300) to this test.",
            pytrace=False,
        )
    measuring = _measuring(request)
    try:
        return measuring.gate_of(request.node), measuring.alone
    except LlmslaError as e:
        raise pytest.fail.Exception(f"{name}: {e}", pytrace=False) from None


@pytest.fixture
def sla_run(request: pytest.FixtureRequest) -> SlaRun:
    """``sla_run()`` asks the mark's bucket of prompts until every limit is decided."""
    return SlaRun(*_gate(request))


@pytest.fixture
def timed_generate(request: pytest.FixtureRequest) -> TimedGenerate:
    """``timed_generate(prompt)`` asks the model once, timed; ``.aio`` in async tests."""
    return TimedGenerate(*_gate(request))


@pytest.fixture
def sla_prompts(request: pytest.FixtureRequest) -> Iterator[Prompt]:
    """Fresh prompts of the mark's bucket, without end: no prompt repeats in a run."""
    gate, _ = _gate(request)
    try:
        prompts = gate.prompts()
    except LlmslaError as e:
        raise pytest.fail.Exception(f"sla_prompts: {e}", pytrace=False) from None
    return _Prompts(prompts)


@pytest.fixture(scope="session")
def sla_model(request: pytest.FixtureRequest) -> Target:
    """The loaded target of this run's policy; ``.model`` and ``.tokenizer`` in-process."""
    try:
        return _measuring(request).model()
    except LlmslaError as e:
        raise pytest.fail.Exception(f"sla_model: {e}", pytrace=False) from None


@pytest.fixture
def record_tgs(request: pytest.FixtureRequest) -> RecordTgs:
    """``record_tgs(42.5, prompt_lengths=…, sampling=…, concurrency=…, memory=…)``."""
    return RecordTgs(request)
