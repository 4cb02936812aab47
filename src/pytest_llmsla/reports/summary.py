"""A whole report in words: which limits stopped the release, which sent it back, what is missing.

Reads the dict of report.json. Returns text that is visible but not yet escaped for Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import numbers, phrases
from .escape import shortened

ReportDict = Mapping[str, Any]

CONDITIONS = ("prompt_lengths", "sampling", "concurrency", "memory")
"""The four conditions that a TGS figure is worth nothing without."""

UNDOCUMENTED = "NOT DOCUMENTED"


@dataclass(frozen=True)
class Sorted:
    """Findings that are not PASS, by what follows from them."""

    stopped: tuple[phrases.FindingDict, ...]
    """Broken limits and failures: the release stops here."""
    sent_back: tuple[phrases.FindingDict, ...]
    """Undocumented or undecided: measure again, the service itself is not judged bad."""
    conditional: tuple[phrases.FindingDict, ...]
    """Over the limit with a valid KV-cache plan."""


def sort_findings(report: ReportDict) -> Sorted:
    """Split the findings: rules 1, 2 and errors stop, rule 3 and undecided ones are sent back."""
    stopped, sent_back, conditional = [], [], []
    for f in report["findings"]:
        if f["verdict"] == "conditional" or phrases.is_conditional_pass(f):
            conditional.append(f)
        elif f["verdict"] == "inconclusive" or phrases.undocumented(f):
            sent_back.append(f)
        elif f["verdict"] != "pass":
            stopped.append(f)
    return Sorted(tuple(stopped), tuple(sent_back), tuple(conditional))


def headline(report: ReportDict) -> str:
    """``FAIL, incomplete``: the verdict of the whole run, and that no model took part if so."""
    scripted = (report.get("target") or {}).get("kind") == "scripted"
    return (
        phrases.verdict(report)
        + ("" if report["complete"] else ", incomplete")
        + (", SCRIPTED: no model was measured" if scripted else "")
    )


def evidence(report: ReportDict) -> str:
    """``preset fast: 20 % risk of passing a limit wrongly; the policy says strict``."""
    policy = report.get("policy") or {}
    preset, risk = policy.get("preset"), policy.get("alpha_pass")
    if preset is None:
        return ""
    text = f"preset {preset}"
    text += (
        ": no release evidence"
        if risk is None
        else f": {numbers.percent(risk)} risk of passing a limit wrongly"
    )
    written = policy.get("written_preset")
    return f"{text}; the policy says {written}" if written else text


def why(report: ReportDict) -> str:
    """Why the run as a whole ended so, where its findings do not say it; may be empty."""
    return shortened(report.get("reason") or "")


def brief(f: phrases.FindingDict) -> str:
    """One finding in one line: id, observed against limit, reason."""
    figures = ""
    if f.get("observed") is not None and f.get("limit") is not None:
        figures = f" observed {phrases.observed(f)}, limit {phrases.limit(f)};"
    mark = f" [{phrases.observed_mark(f)}]" if phrases.observed_mark(f) else ""
    return f"{shortened(f['id'])}: {phrases.verdict(f)}{mark}:{figures} {shortened(f['reason'])}"


def not_measured(report: ReportDict) -> list[str]:
    """Declared limits without a result, each with its reason where the report knows one."""
    return [_entry(item) for item in report.get("not_measured") or ()]


def _entry(item: object) -> str:
    if not isinstance(item, Mapping):
        return shortened(item)
    reason = f": {shortened(item['reason'])}" if item.get("reason") else ""
    return f"{shortened(item.get('id', '?'))}{reason}"


def errors(report: ReportDict) -> list[str]:
    """Errors as the report groups them, one line a kind: ``3 × CUDA out of memory``."""
    return [_error(item) for item in report.get("errors") or ()]


def _error(item: object) -> str:
    if not isinstance(item, Mapping):
        return shortened(item)
    text = next((item[k] for k in ("error", "message", "reason", "text") if item.get(k)), "?")
    where = next((f"{k} {shortened(item[k])}: " for k in ("bucket", "gate") if item.get(k)), "")
    times = f"{item['count']} × " if "count" in item else ""
    return f"{where}{times}{shortened(text)}"


def tgs_figure(entry: Mapping[str, Any]) -> str:
    """``steady: 63.0 tok/s at concurrency 1``."""
    text = f"{shortened(entry['kind'])}: {numbers.measured(entry['tokens_per_s'], 'tokens/s')}"
    per_request = entry.get("per_request_tokens_per_s")
    if per_request is not None and per_request != entry["tokens_per_s"]:
        text += f" ({numbers.measured(per_request, 'tokens/s')} a request)"
    return f"{text} at concurrency {shortened(entry['concurrency'])}"


def tgs_conditions(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The four conditions and their values; :data:`UNDOCUMENTED` for one nobody recorded.

    How a figure was read, or why another could not be, is left to :func:`tgs_remarks`.
    """
    given = entry.get("conditions") or {}
    return [(name, _condition(given.get(name))) for name in CONDITIONS]


def _condition(value: object) -> str:
    if isinstance(value, Mapping):
        value = {k: v for k, v in value.items() if not _is_remark(k) and v not in ("", None)}
    if value is None or value in ({}, [], ""):
        return UNDOCUMENTED
    return text_of(value)


def tgs_remarks(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Methods of the recorded figures and reasons for missing ones, as (name, text)."""
    given = entry.get("conditions") or {}
    out: list[tuple[str, str]] = []
    for value in given.values():
        if isinstance(value, Mapping):
            out += facts({k: v for k, v in value.items() if _is_remark(k) and v})
    return out


def _is_remark(key: object) -> bool:
    return str(key) == "methods" or str(key).endswith("_reason")


def warnings(report: ReportDict) -> list[str]:
    """What a reader must know besides the verdict: the target's warnings, notes, reruns, cuts."""
    given = (report.get("target") or {}).get("warnings") or ()
    out = [_warning(w) for w in given]
    out += [shortened(note) for note in report.get("prompt_notes") or ()]
    out += [f"{shortened(r['id'])}: {shortened(r['status'])}" for r in report.get("reruns") or ()]
    for bucket, warmup in (report.get("warmup") or {}).items():
        if isinstance(warmup, Mapping) and warmup.get("steady") is False:
            out.append(f"bucket {shortened(bucket)}: warm-up was not steady when measuring began")
    requests = report.get("requests") or {}
    if requests.get("log_cut_short"):
        out.append("the log is cut short: the run was killed while it wrote")
    if requests.get("in_flight_at_the_end"):
        out.append(f"{requests['in_flight_at_the_end']} requests never got an answer")
    return out


def _warning(item: object) -> str:
    if isinstance(item, Mapping):
        return shortened(item.get("message") or item.get("code") or text_of(item))
    return shortened(item)


def text_of(value: object) -> str:
    """Any JSON value on one line: ``greedy: yes, top_p: 0.9``; figures as they stand."""
    if value is None:
        return numbers.NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return numbers.fact(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{shortened(k)}: {text_of(v)}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(text_of(v) for v in value) or "none"
    return shortened(value)


def facts(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as ``(dotted name, text)``, in the order they were recorded."""
    for key, inner in value.items():
        name = f"{prefix}{shortened(key)}"
        if isinstance(inner, Mapping) and inner:
            yield from facts(inner, f"{name}.")
        elif _is_table(inner):
            for index, row in enumerate(inner):
                yield from facts(row, f"{name}.{index}.")
        else:
            yield name, text_of(inner)


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def buckets(report: ReportDict) -> dict[str, list[phrases.FindingDict]]:
    """Findings by bucket, in the report's order; limits without a bucket are left out."""
    out: dict[str, list[phrases.FindingDict]] = {}
    for f in report["findings"]:
        if f.get("bucket"):
            # A test's own gate puts its node id where a policy's limit has the bucket.
            owner = str(f["id"]).rsplit("/", 1)[0]
            title = f["bucket"] if owner == f["bucket"] else f"{f['bucket']} of {owner}"
            out.setdefault(title, []).append(f)
    return out
