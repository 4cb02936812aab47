"""A mark's own policy: what it says, and the run's policy for what it does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..policy import PUBLISHED_RULES, Bucket, LoadedPolicy, bucket_for, policy_from_mapping
from .marker import LIMITS, SlaMark

_ITL = {
    "itl_p50_ms": "p50_ms",
    "itl_p95_ms": "p95_ms",
    "itl_p99_ms": "p99_ms",
    "stall_p95_ms": "stall_p95_ms",
}


@dataclass(frozen=True)
class MarkedPolicy(LoadedPolicy):
    """A mark's policy; each limit says which mark or policy line it comes from."""

    origins: Mapping[str, str] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """``test_chat.py:12 @sla(ttft_ms=300)``, ``sla.yaml:8 itl.p95_ms`` or the default."""
        return self.origins.get(key) or super().source(key)


def policy_of(mark: SlaMark, run: LoadedPolicy | None, *, folder: Path) -> LoadedPolicy:
    """The policy a marked test is judged by: one bucket, and the limits in force for it.

    With a policy for the run (``--sla``, a named sla.yaml or ini ``sla_policy``), an argument
    that is not written has the policy's value; written as None it switches that limit off.
    Without one only written limits count; a mark that writes none means the published rules.

    Args:
        mark: the checked mark.
        run: the run's policy, or None.
        folder: of the test file; a relative ``kv_plan`` starts there.

    Raises:
        UsageError: no such bucket, no limit left, or a combination a policy refuses.
    """
    base = run
    if base is None and not any(mark.says(name) for name in LIMITS):
        base = policy_from_mapping(PUBLISHED_RULES, "published rules")
    bucket = _bucket(mark, run)
    raw = _skeleton(run)
    raw["buckets"] = [_bucket_keys(mark, bucket, base)]
    if mark.says("ttft_percentile"):
        raw.setdefault("ttft", {})["percentile"] = mark.get("ttft_percentile")
    raw["itl"] = _itl_keys(mark, base, folder)
    raw["tgs"] = _tgs_keys(mark)
    workload = raw.setdefault("workload", {})
    if mark.says("max_new_tokens"):
        workload["max_new_tokens"] = mark.get("max_new_tokens")
    if mark.says("sampling"):
        workload["sampling"] = {**workload.get("sampling", {}), **mark.get("sampling")}
    prompts = workload.get("prompts")
    if isinstance(prompts, dict):
        own = prompts.get(bucket.name)
        workload["prompts"] = "builtin" if own is None else {bucket.name: own}
    if mark.says("evidence"):
        raw.setdefault("evidence", {})["preset"] = mark.get("evidence")
    _require_a_limit(mark, raw)
    loaded = policy_from_mapping(raw, mark.where, base=folder if run is None else run.base)
    require_plan(loaded, f"{mark.where}: kv_plan" if mark.says("kv_plan") else None)
    return MarkedPolicy(
        **{f.name: getattr(loaded, f.name) for f in fields(loaded)},
        origins=_remarked(_origins(mark, run, bucket.name), mark, run, bucket),
    )


def require_plan(loaded: LoadedPolicy, named: str | None = None) -> None:
    """Raise UsageError where a KV-cache plan is named that is not there.

    It is only read once P95 of ITL is over its limit; a gate may not pass until then on a name
    that means nothing. ``named``: where it stands, where that is not the policy.
    """
    path = loaded.kv_plan_path
    if path is None or path.is_file():
        return
    what = "is a folder" if path.is_dir() else "does not exist"
    raise UsageError(
        f"{named or loaded.source('itl.kv_plan')}: {path} {what}; give the file of a KV-cache plan "
        "(cause, measures, owner, expires), or leave it out."
    )


def _origins(mark: SlaMark, run: LoadedPolicy | None, bucket: str) -> dict[str, str]:
    arguments = {
        f"buckets.{bucket}.ttft_ms": "ttft_ms",
        **{f"itl.{key}": argument for argument, key in _ITL.items()},
        "tgs.min_tokens_per_s": "min_tokens_per_s",
        "tgs.concurrency": "concurrency",
    }
    at = mark.where.split(" ", 1)[0]
    out: dict[str, str] = {}
    for key, argument in arguments.items():
        if mark.says(argument):
            out[key] = f"{at} @sla({argument}={mark.get(argument)!r})"
        else:
            out[key] = f"{at} @sla, by the published rules" if run is None else run.source(key)
    key = "errors.max_error_rate"
    out[key] = f"{at} @sla: no request may fail" if run is None else run.source(key)
    return out


def _remarked(
    origins: Mapping[str, str], mark: SlaMark, run: LoadedPolicy | None, bucket: Bucket
) -> dict[str, str]:
    """``origins`` with what the mark loosens beside it, and what it switches off beside each.

    It stands with the origin because that goes into the log and so to every later report.
    """
    out = dict(origins)
    off = []
    for key, argument, theirs, unit in _policys_limits(run, bucket, mark.get("concurrency", 1)):
        own = mark.get(argument) if mark.says(argument) else theirs
        if own is None:
            off.append(f"{argument}=None switches off the policy's {theirs:g} {unit}")
        elif own < theirs if argument in _LESS_IS_LOOSER else own > theirs:
            out[key] += f"; looser than the policy: {own:g} {unit}, policy {theirs:g} {unit}"
    return {key: "; ".join([where, *off]) for key, where in out.items()}


_LESS_IS_LOOSER = ("ttft_percentile", "min_tokens_per_s")


def _policys_limits(
    run: LoadedPolicy | None, bucket: Bucket, concurrency: int
) -> Iterator[tuple[str, str, float, str]]:
    """Key of the origin, argument, value and unit of what the run's policy says of ``bucket``."""
    if run is None:
        return
    ttft, policy = f"buckets.{bucket.name}.ttft_ms", run.policy
    if bucket in policy.buckets and bucket.ttft_ms is not None:
        yield ttft, "ttft_ms", bucket.ttft_ms, "ms"
        yield ttft, "ttft_percentile", policy.ttft.percentile, "% of requests"
    for argument, key in _ITL.items():
        value = getattr(policy.itl, key)
        if value is not None:
            yield f"itl.{key}", argument, value, "ms"
    rate = policy.min_rate(concurrency)
    if rate is not None:
        yield "tgs.min_tokens_per_s", "min_tokens_per_s", rate, "tokens/s"


def _bucket(mark: SlaMark, run: LoadedPolicy | None) -> Bucket:
    try:
        return bucket_for(
            None if run is None else run.policy,
            prompt_min=mark.get("prompt_min"),
            prompt_max=mark.get("prompt_max"),
            name=mark.get("bucket"),
        )
    except UsageError as e:
        of = "the published rules" if run is None else run.where
        raise UsageError(f"{mark.where}: @sla: {e} (of {of})") from None


def _skeleton(run: LoadedPolicy | None) -> dict[str, Any]:
    if run is None:
        return {"version": 1}
    raw: dict[str, Any] = run.policy.model_dump(mode="json")
    # Limits of the whole service are judged where the sla.yaml itself is gated, and so is its load:
    # a test says for itself how many requests it sends at once.
    del raw["memory"], raw["goodput"], raw["workload"]["load"]
    return raw


def _bucket_keys(mark: SlaMark, bucket: Bucket, base: LoadedPolicy | None) -> dict[str, Any]:
    keys: dict[str, Any] = bucket.model_dump(mode="json")
    if mark.says("ttft_ms"):
        keys["ttft_ms"] = mark.get("ttft_ms")
    elif base is None or bucket not in base.policy.buckets:
        keys["ttft_ms"] = None  # bucket_for fell back on a published range, not on its limit
    return keys


def _itl_keys(mark: SlaMark, base: LoadedPolicy | None, folder: Path) -> dict[str, Any]:
    keys: dict[str, Any] = {"p95_ms": None}
    if base is not None:
        keys = base.policy.itl.model_dump(mode="json")
    for argument, key in _ITL.items():
        if mark.says(argument):
            keys[key] = mark.get(argument)
    if mark.says("kv_plan"):
        plan = mark.get("kv_plan")
        keys["kv_plan"] = None if plan is None else str(folder / Path(plan).expanduser())
    return keys


def _tgs_keys(mark: SlaMark) -> dict[str, Any]:
    if mark.get("min_tokens_per_s") is None and not mark.says("concurrency"):
        return {"concurrency": []}
    concurrency = mark.get("concurrency", 1)
    return {"concurrency": [concurrency], "min_tokens_per_s": mark.get("min_tokens_per_s")}


def _require_a_limit(mark: SlaMark, raw: dict[str, Any]) -> None:
    itl = raw["itl"]
    limits = [raw["buckets"][0].get("ttft_ms"), *(itl.get(key) for key in _ITL.values())]
    if all(limit is None for limit in limits) and not raw["tgs"]["concurrency"]:
        raise UsageError(
            f"{mark.where}: @sla has no limit to judge. Add one of {', '.join(LIMITS)}, such as "
            "ttft_ms=300."
        )
