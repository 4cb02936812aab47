"""Is a foreign run evidence for this policy at all? Model, load, output length, sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..policy import LoadedPolicy
from .base import Run


def refuse_other_conditions(runs: Sequence[Run], loaded: LoadedPolicy) -> None:
    """Raise UsageError where the runs differ from the policy, or from each other."""
    _one_service(runs)
    _refuse_twice(runs)
    for run in runs:
        _model(run, loaded)
        _load(run, loaded)
        _sampling(run, loaded)
        _length(run, loaded)


def _one_service(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what in ("tool", "version", "model", "sampling"):
            one, two = getattr(first, what), getattr(run, what)
            if one != two:
                raise UsageError(
                    f"{run.path}: mixed runs: {what} {two!r:.80} beside {one!r:.80} of "
                    f"{first.path}. Check them one by one"
                )


def _refuse_twice(runs: Sequence[Run]) -> None:
    """The same request twice, in one file or in two forms of one run, would count twice."""
    seen: dict[object, Run] = {}
    for run in runs:
        for t in run.timelines:
            key = (t.start_ns, t.arrivals, t.prompt_tokens)
            if t.ok and key in seen:
                raise UsageError(
                    f"{run.path}: request {t.id} has to the nanosecond the times of one in "
                    f"{seen[key].path}: the same evidence would count twice. Give each run once"
                )
            seen[key] = run


def _model(run: Run, loaded: LoadedPolicy) -> None:
    said = getattr(loaded.policy.target, "model", None)
    if "target.model" not in loaded.lines or said is None or run.model is None:
        return
    if said != run.model and "${" not in said:
        raise UsageError(
            f"{run.path}: measured model {run.model!r:.120}, but {loaded.source('target.model')} "
            f"says {said!r:.120}. Give results of that model, or the policy of this one"
        )


def _load(run: Run, loaded: LoadedPolicy) -> None:
    policy = loaded.policy
    if run.rate is None:
        if policy.load.open:
            raise UsageError(
                f"{run.path}: {run.concurrency or 'all'} requests were kept in flight (a closed "
                f"loop), but {loaded.source('workload.load.kind')} says {policy.load.kind}. "
                "Measure with that load, or judge by a policy of a closed loop"
            )
        if run.concurrency is not None and run.concurrency not in policy.levels:
            listed = ", ".join(map(str, policy.levels))
            raise UsageError(
                f"{run.path}: measured at concurrency {run.concurrency}, but "
                f"{loaded.source('tgs.concurrency')} lists {listed}. Add it there "
                f"(tgs: {{concurrency: [{run.concurrency}]}}), or measure at {listed}"
            )
        return
    if not policy.load.open:
        raise UsageError(
            f"{run.path}: requests came in at {run.rate:g}/s (an open loop), but the policy's "
            f"load is closed. Say so: workload: {{load: {{kind: poisson, rate: {run.rate:g}}}}}"
        )
    if policy.load.rate is not None and abs(policy.load.rate - run.rate) > 0.01 * run.rate:
        raise UsageError(
            f"{run.path}: requests came in at {run.rate:g}/s, but "
            f"{loaded.source('workload.load.rate')} says {policy.load.rate:g}"
        )


def _sampling(run: Run, loaded: LoadedPolicy) -> None:
    if not run.sampling or not any(k.startswith("workload.sampling") for k in loaded.lines):
        return
    policy: Mapping[str, Any] = loaded.policy.workload.sampling.model_dump(mode="json")
    if policy.get("greedy"):
        policy = {"temperature": 0}
    for name, value in run.sampling.items():
        if name != "seed" and name in policy and policy[name] != value:
            raise UsageError(
                f"{run.path}: was measured with {name} {value!r:.40}, but "
                f"{loaded.source('workload.sampling')} says {policy[name]!r:.40}. Measure with "
                "that sampling, or judge by a policy of this one"
            )


def _length(run: Run, loaded: LoadedPolicy) -> None:
    workload = loaded.policy.workload
    judged = workload.max_new_tokens
    asked = {t.max_new_tokens for t in run.timelines if t.max_new_tokens}
    if asked and asked != {judged}:
        raise UsageError(
            f"{run.path}: asked for {_range(asked)} new tokens, but the policy judges {judged}. "
            f"Set workload: {{max_new_tokens: {max(asked)}}} or measure with {judged}"
        )
    got = [t.output_tokens for t in run.timelines if t.ok and t.output_tokens]
    longest = max(got, default=judged)
    if longest > judged or (longest < judged and workload.force_length and not asked):
        raise UsageError(
            f"{run.path}: its longest answer has {longest} tokens, but the policy judges {judged}. "
            f"Set workload: {{max_new_tokens: {longest}}}"
            + ("" if longest > judged else ", or force_length: false where answers end themselves")
        )


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
