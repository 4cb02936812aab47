"""In the process that runs the tests: measures, and gives each test its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from threading import Lock
from typing import Any, NoReturn

import pytest

from ..errors import LlmslaError, TargetError
from ..finding import Finding, Limit
from ..reports.text import failure_block
from ..rules.conditions import undocumented
from ..session import Gate, Session
from ..targets import Target
from . import running
from .console import Console
from .items import SlaItem
from .outcomes import NO_RESULT
from .progress import GateProgress
from .properties import properties_of
from .state import GATE, LOADED, OPTIONS, RESUME
from .stopping import stoppable


class Measuring:
    """Owns the run's :class:`~pytest_llmsla.session.Session`."""

    def __init__(
        self, config: pytest.Config, *, refused: str | None = None, planned: bool = False
    ) -> None:
        """``planned``: limits are, so that what becomes of their tests will be on record."""
        self._config = config
        self._planned = planned
        self._opts = config.stash[OPTIONS]
        self._refused = refused
        self._session: Session | None = None
        self._console = Console(config)
        self._attempts: Counter[str] = Counter()
        self.alone = Lock()
        """Held by whoever asks the model: requests that overlap would compete."""

    # -- what items and fixtures ask for

    # A method: pytest reads every attribute of a plugin it registers, properties among them.
    def opened(self) -> Session:
        """The run, opened on first use.

        Raises:
            TargetError: its folder cannot be written.
        """
        if self._session is None:
            loaded = self._config.stash.get(LOADED, None)
            try:
                session = Session(
                    running.report_dir(self._config),
                    release=loaded if self._opts.policy is not None else None,
                    progress=GateProgress(self._console),
                    run_dir=running.run_dir(self._config),
                    keep_text=loaded is not None and loaded.policy.report.keep_text,
                    signoff=self._opts.signoff,
                    resume=self._config.stash.get(RESUME, None),
                )
                assert session.writer  # opens the log: an unwritable folder is told now
            except OSError as e:
                raise TargetError(
                    f"the report folder cannot be written: {e}. Nothing is measured without a "
                    "record; give another folder with --sla-report."
                ) from None
            self._session = session
        return self._session

    def gate_of(self, item: pytest.Item) -> Gate:
        """The gate of a marked test."""
        self._check_refused(item)
        spec = item.stash[GATE]
        return self.opened().gate(item.nodeid, spec.loaded)

    def model(self) -> Target:
        """The target of the run's policy.

        Raises:
            LlmslaError: there is none, or it cannot be loaded.
        """
        if self._refused is not None:
            raise TargetError(self._refused)
        loaded = self._config.stash.get(LOADED, None)
        if loaded is None:
            from ..policy import PUBLISHED_RULES, policy_from_mapping

            loaded = policy_from_mapping(PUBLISHED_RULES, "published rules")
        return self.opened().target_of(loaded)

    def record_tgs(self, item: pytest.Item, value: object, conditions: Mapping[str, Any]) -> None:
        """Record a figure measured elsewhere; fails the test when a condition is missing."""
        self._check_refused(item)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            pytest.fail(
                f"record_tgs({value!r}): valid: a finite number of tokens per second above 0.",
                pytrace=False,
            )
        try:
            given = _plain(conditions)
        except RecursionError:
            pytest.fail("record_tgs: a condition holds itself; valid: plain values.", pytrace=False)
        self.opened().record_tgs(item.nodeid, float(value), given)
        missing = undocumented(given)  # as on record, so that a later check says the same
        if missing:
            pytest.fail(
                f"record_tgs({value:g}): {missing}. A rate without its four conditions cannot be "
                "compared with another (rule 3).",
                pytrace=False,
            )

    def judge_limit(self, item: SlaItem) -> None:
        """Measure the buckets of the selected limits, then judge the item's."""
        self._check_refused(item)
        try:
            gate = self.opened().gate(None, self._config.stash[LOADED])
            with stoppable():
                gate.measure(self._wanted(gate, item.session))
        except LlmslaError as e:
            words = f"{item.limit.id}: could not be measured: {e}"
            raise pytest.fail.Exception(words, pytrace=False) from None
        finally:
            self._console.settle()
        found = gate.finding(item.limit.id)
        _note(item, [] if found is None else [found])
        self._conclude([item.limit], [] if found is None else [found])

    # -- hooks

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Count attempts: a rerun plugin starts a test again."""
        self._attempts[nodeid] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Tell the gate of a rerun that a new attempt begins."""
        attempt = self._attempts[item.nodeid]
        if attempt > 1 and GATE in item.stash and self._refused is None:
            self.gate_of(item).begin_attempt(attempt)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Judge a marked test once its body has returned; a body that raised stays the failure."""
        if GATE not in item.stash:
            return (yield)
        try:
            result = yield
        except BaseException as e:
            self._record(item, e)
            raise
        if getattr(item, "_excinfo", None):  # unittest keeps a failed body's exception here
            self._record(item, None)
            return result
        self._console.settle()
        self._judge(item)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Put every planned gate on record, also those never begun, and close the log."""
        if self._session is None:
            return  # nothing was measured: the reporting side opens the log and says so
        try:
            for item in session.items:
                if GATE in item.stash:
                    self.gate_of(item)
            self._session.close(_ended(session), outcomes_follow=self._planned)
        except (LlmslaError, OSError):
            pass  # a disk that filled up: the reporting side finds the log cut, and says so

    # -- inside

    def _check_refused(self, item: pytest.Item) -> None:
        if self._refused is not None:
            if NO_RESULT not in item.user_properties:
                item.user_properties.append(NO_RESULT)
            pytest.fail(self._refused, pytrace=False)

    def _wanted(self, gate: Gate, session: pytest.Session) -> set[tuple[str, int | None]] | None:
        """Buckets and levels of the selected limits; a limit of no bucket needs all of its level.

        None (all) when a limit of the whole service is in.
        """
        chosen = [i.limit for i in session.items if isinstance(i, SlaItem)]
        out: set[tuple[str, int | None]] = set()
        for limit in chosen:
            if limit.bucket is not None:
                out.add((limit.bucket, limit.concurrency))
            elif limit.rule == "memory":
                return None
            else:
                out.update((b.name, limit.concurrency) for b in gate.policy.buckets)
        return out

    def _record(self, item: pytest.Item, error: BaseException | None) -> None:
        """Findings beside a failure of the body's own."""
        self._console.settle()
        if self._refused is not None or self._session is None:
            return
        gate = self.gate_of(item)
        if isinstance(error, LlmslaError):
            self.opened().problem(gate.key, None, str(error))
        findings = gate.findings()
        _note(item, findings)
        broken = [failure_block(f) for f in findings if not self._accepts(f)]
        if broken:
            item.add_report_section("call", "sla", "\n".join(broken))

    def _judge(self, item: pytest.Item) -> None:
        gate = self.gate_of(item)
        findings = gate.findings()
        _note(item, findings)
        if not any(not t.warmup for t in gate.timelines):
            pytest.fail(
                f"{item.name}: marked sla, and measured nothing. Call sla_run() (it asks until "
                "every limit is decided) or timed_generate(prompt) in the test, or remove the "
                "mark.",
                pytrace=False,
            )
        self._conclude(gate.limits, findings)

    def _conclude(self, limits: Iterable[Limit], findings: list[Finding]) -> None:
        found = {f.id: f for f in findings}
        blocks = [
            f"{limit.id}: nothing of it was measured, so it is not met ({limit.source})"
            for limit in limits
            if limit.id not in found
        ]
        blocks += [failure_block(f) for f in findings if not self._accepts(f)]
        if blocks:
            _fail(blocks)

    def _accepts(self, finding: Finding) -> bool:
        warn = self._opts.inconclusive == "warn"
        return finding.verdict == "pass" or (warn and finding.verdict == "inconclusive")


def _fail(blocks: list[str]) -> NoReturn:
    pytest.fail("\n\n".join(blocks), pytrace=False)


def _note(item: pytest.Item, findings: Iterable[Finding]) -> None:
    """Put findings into the test's report (JUnit properties), those of the last attempt only."""
    fresh = properties_of(findings)
    names = {name for name, _ in fresh}
    item.user_properties[:] = [p for p in item.user_properties if p[0] not in names] + fresh


def _plain(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions as JSON can hold them; anything else as its text."""
    return {name: _json(value) for name, value in conditions.items()}


def _json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [_json(v) for v in value]
    return str(value)


def _ended(session: pytest.Session) -> str:
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return "interrupted"
    if session.shouldfail or session.shouldstop:
        return "stopped"
    return "ended"
