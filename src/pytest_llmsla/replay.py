"""A run judged again from its log: the lines fed to the judge of their gate, in start order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from .errors import LlmslaError, UsageError
from .finding import Finding
from .log import RunLog, utc_now
from .policy import LoadedPolicy, policy_from_mapping
from .timeline import Timeline
from .verdict import EVERY, Gatekeeper, KvPlanState


def kv_plan_state(loaded: LoadedPolicy, today: date | None = None) -> KvPlanState:
    """Read the policy's KV-cache plan as of ``today`` (default: the UTC date now)."""
    path = loaded.kv_plan_path
    if path is None:
        return KvPlanState()
    from .policy.kv_plan import load_kv_plan

    try:
        plan = load_kv_plan(path, today or date.fromisoformat(utc_now()[:10]))
    except (LlmslaError, OSError, ValueError, RecursionError) as e:
        return KvPlanState(problem=str(e))
    return KvPlanState(summary=plan.summary())


@dataclass
class JudgedGate:
    """One gate with its judge fed from the log."""

    key: str | None
    loaded: LoadedPolicy
    keeper: Gatekeeper
    sources: Mapping[str, str]
    given: bool = False
    """True for a policy given to judge by, False for the one on record."""
    requests: list[Timeline] = field(default_factory=list)
    """Its requests as judged, in start order: status ``error`` where one is unusable."""

    def findings(self) -> list[Finding]:
        """Its findings, with the source lines the run recorded."""
        out = []
        for f in self.keeper.findings():
            source = self.sources.get(f.id, f.source)
            out.append(f if source == f.source else replace(f, source=source))
        return out

    @property
    def observed_only(self) -> bool:
        """True for a Python test under ``evidence="observed"``."""
        return self.key is not None and self.loaded.policy.alpha_pass is None


def judge_log(log: RunLog, release: LoadedPolicy | None = None) -> list[JudgedGate]:
    """Judge every gate of a log, in the order they were declared.

    ``release`` judges the requests of the sla.yaml's gate instead of the policy the run recorded
    (``llmsla check --sla``).

    Raises:
        UsageError: a recorded policy is not one this version can judge by, or a line belongs to
            a gate whose policy is not on record.
    """
    gates: dict[str | None, JudgedGate] = {}
    if release is not None or log.run.get("policy") is not None:
        recorded = log.run.get("policy")
        loaded = release or _recorded(log, recorded, "policy", log.run.get("policy_base"))
        sources = {} if release is not None else dict(log.run.get("sources") or {})
        gates[None] = _gate(None, loaded, sources, given=release is not None)
    for name, line in log.gates.items():
        loaded = _recorded(log, line.get("policy"), f"gate {name}", line.get("policy_base"))
        gates[name] = _gate(name, loaded, dict(line.get("sources") or {}))
    for target in log.targets:
        _of(gates, target.get("gate"), log).facts(target)
    for line in log.levels:
        _of(gates, line.get("gate"), log).opened(
            line["concurrency"], line["t_ns"], segment=line["segment"], mode=line.get("mode")
        )
    for t in log.timelines:
        keeper = _of(gates, t.gate, log)
        gates[t.gate].requests.append(keeper.add(t))
    for line in log.resources:
        _of(gates, line.get("gate"), log).resources(line)
    for line in log.servers:
        _of(gates, line.get("gate"), log).server(line.get("server") or {})
    for line in log.problems:
        _of(gates, line.get("gate"), log).problem(
            line.get("bucket"), str(line["reason"]), line.get("concurrency", EVERY)
        )
    _end(log, gates)
    return list(gates.values())


def _of(gates: Mapping[str | None, JudgedGate], key: str | None, log: RunLog) -> Gatekeeper:
    """The judge of a line. A line of no known gate is evidence that nothing would hear."""
    found = gates.get(key)
    if found is not None:
        return found.keeper
    if key is None:
        raise UsageError(
            f"{log.path}: the policy of its requests is not on record; give it with --sla."
        )
    raise UsageError(
        f"{log.path}: has lines of gate {key!r:.200} but not its 'gate' line. The file is damaged: "
        "give the whole file."
    )


def _end(log: RunLog, gates: Mapping[str | None, JudgedGate]) -> None:
    """Tell each gate why its measuring ended: as recorded for it, else as the run ended."""
    endings = () if log.end is None else log.end.get("measuring") or ()
    whole = "interrupted" if log.end is None else str(log.end["reason"])
    for gate in gates.values():
        gate.keeper.end(whole)
    for line in endings:
        # A gate that measured and is not in the file was cut out of it.
        _of(gates, line.get("gate"), log).end(str(line["reason"]), line.get("concurrency", EVERY))


def _gate(
    key: str | None, loaded: LoadedPolicy, sources: Mapping[str, str], *, given: bool = False
) -> JudgedGate:
    keeper = Gatekeeper(loaded, gate=key, kv_plan=kv_plan_state(loaded), other_levels=given)
    return JudgedGate(key, loaded, keeper, sources, given)


def _recorded(log: RunLog, policy: object, what: str, base: object) -> LoadedPolicy:
    if not isinstance(policy, Mapping):
        raise UsageError(f"{log.path}: {what} is not on record; give the policy with --sla.")
    where = Path(base) if isinstance(base, str) else None
    return policy_from_mapping(policy, f"{log.path} ({what})", base=where)
