"""A whole report in words: which limits stopped the release, which sent it back, what is missing.

Reads the dict of report.json. Returns text that is visible but not yet escaped for Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..finding import CONDITIONS
from . import numbers, phrases
from .escape import shortened

ReportDict = Mapping[str, Any]

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
    return (
        phrases.verdict(report)
        + ("" if report["complete"] else ", incomplete")
        + (", SCRIPTED: no model was measured" if is_scripted(report) else "")
    )


def is_scripted(report: ReportDict) -> bool:
    """True where a script stood in for the model."""
    return (report.get("target") or {}).get("kind") == "scripted"


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
        figures = f"observed {phrases.observed(f)}, limit {phrases.limit(f)}"
    mark = f" [{phrases.observed_mark(f)}]" if phrases.observed_mark(f) else ""
    said = "; ".join(x for x in (figures, shortened(phrases.reason_beside_mark(f))) if x)
    return ": ".join(x for x in (f"{shortened(f['id'])}: {phrases.verdict(f)}{mark}", said) if x)


def briefs(report: ReportDict, findings: Sequence[phrases.FindingDict]) -> list[str]:
    """Each finding in one line, with why its limit is among the not measured ones if it is."""
    why = {
        str(item.get("id")): shortened(item["reason"])
        for item in report.get("not_measured") or ()
        if isinstance(item, Mapping) and item.get("reason")
    }
    return [
        brief(f) + (f"; not measured to its end ({why[f['id']]})" if f["id"] in why else "")
        for f in findings
    ]


def missing(report: ReportDict) -> list[str]:
    """:func:`not_measured` without what :func:`briefs` says of findings that are no PASS."""
    found = sort_findings(report)
    said = {f["id"] for f in (*found.stopped, *found.sent_back, *found.conditional)}
    return [
        _entry(item)
        for item in report.get("not_measured") or ()
        if not isinstance(item, Mapping) or item.get("id") not in said
    ]


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
    """``steady: 63.0 tokens/s at concurrency 1``; a further level: ``…, 87 % of 4 times the
    rate of one``.
    """
    text = f"{shortened(entry['kind'])}: {numbers.measured(entry['tokens_per_s'], 'tokens/s')}"
    per_request = entry.get("per_request_tokens_per_s")
    if per_request is not None and per_request != entry["tokens_per_s"]:
        text += f" ({numbers.measured(per_request, 'tokens/s')} a request)"
    if entry.get("concurrency") is None and entry.get("load"):
        return f"{text}, {shortened(entry['load'])}"
    level = shortened(entry["concurrency"])
    text = f"{text} at concurrency {level}"
    share = entry.get("efficiency")
    if share is None:
        return text
    return f"{text}, {numbers.percent(share)} of {level} times the rate of one"


def tgs_conditions(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The four conditions and their values; :data:`UNDOCUMENTED` for one nobody recorded.

    How a figure was read, or why another could not be, is left to :func:`tgs_remarks`.
    """
    given = entry.get("conditions") or {}
    return [(name, _condition(given.get(name))) for name in CONDITIONS]


def _condition(value: object) -> str:
    if isinstance(value, Mapping):
        value = _declared(
            {k: v for k, v in value.items() if not _is_remark(k) and v not in ("", None)}
        )
    if value is None or value in ({}, [], ""):
        return UNDOCUMENTED
    if isinstance(value, Mapping):
        value = {_MEMORY.get(k, k): _gib(k, v) for k, v in value.items()}
    return text_of(value)


_MEMORY = {
    "rss_peak_gib": "resident memory, peak",
    "allocated_peak_gib": "allocated on the device, peak",
    "reserved_peak_gib": "reserved on the device, peak",
    "device_used_peak_gib": "used on the device, peak",
}


def _gib(key: str, value: object) -> object:
    if key in _MEMORY and isinstance(value, (int, float)) and not isinstance(value, bool):
        return numbers.measured(value, "GiB")
    return value


def _declared(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """``declared: 14.2 GiB (source: …)`` beside what was measured, never mixed with it."""
    if "declared_gib" not in value:
        return value
    source = shortened(value.get("declared_source"))
    words = {"declared": f"{text_of(value['declared_gib'])} GiB (source: {source})"}
    rest = {k: v for k, v in value.items() if k not in ("declared_gib", "declared_source")}
    return words | rest


def tgs_remarks(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Methods of the recorded figures, reasons for missing ones and losses, as (name, text)."""
    given = entry.get("conditions") or {}
    out: list[tuple[str, str]] = [_loss(each) for each in entry.get("losses") or ()]
    for value in given.values():
        if isinstance(value, Mapping):
            out += facts({k: v for k, v in value.items() if _is_remark(k) and v})
    return out


def _loss(item: Mapping[str, Any]) -> tuple[str, str]:
    """``likely lost to queue``: its share and its evidence."""
    share = item.get("share")
    about = (
        ""
        if share is None
        else f"about {numbers.percent(share)} of what as many requests would give one by one: "
    )
    return f"likely lost to {shortened(item.get('cause'))}", f"{about}{item.get('evidence', '')}"


def _is_remark(key: object) -> bool:
    return str(key) == "methods" or str(key).endswith("_reason")


def warnings(report: ReportDict) -> list[str]:
    """What a reader must know besides the verdict: the target's warnings, notes, reruns, cuts."""
    given = (report.get("target") or {}).get("warnings")
    out = [_warning(w) for w in given] if isinstance(given, list) else []
    out += [_resumed(part) for part in report.get("resumed") or ()]
    out += [shortened(note) for note in report.get("prompt_notes") or ()]
    out += [shortened(note) for note in report.get("notes") or ()]
    out += [f"{shortened(r['id'])}: {shortened(r['status'])}" for r in report.get("reruns") or ()]
    for bucket, warmup in (report.get("warmup") or {}).items():
        if isinstance(warmup, Mapping) and warmup.get("steady") is False:
            out.append(f"bucket {shortened(bucket)}: warm-up was not steady when measuring began")
    requests = report.get("requests") or {}
    if requests.get("log_cut_short"):
        out.append("the log is cut short: the run was killed while it wrote")
    if requests.get("in_flight_at_the_end"):
        never = numbers.counted(requests["in_flight_at_the_end"], "request")
        out.append(f"{never} never got an answer")
    return out


def _resumed(part: Mapping[str, Any]) -> str:
    """What another process measured before this run went on."""
    text = (
        f"continues {shortened(part.get('from'))} ({part.get('requests')} requests, SHA-256 "
        f"{str(part.get('sha256'))[:12]}…): its requests count"
    )
    lost = part.get("in_flight")
    return f"{text}, and {lost} that were in flight when it ended have failed" if lost else text


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
    """Findings by bucket and level of load, in the report's order; others are left out."""
    out: dict[str, list[phrases.FindingDict]] = {}
    for f in report["findings"]:
        if f.get("bucket"):
            out.setdefault(_bucket(f), []).append(f)
    return out


def _bucket(f: phrases.FindingDict) -> str:
    """``short``, ``short, at concurrency 4``, ``short of tests/test_it.py::test_short``."""
    owner = str(f["id"]).split("/")[:-1]
    if f.get("load") and owner and _LEVEL.fullmatch(owner[-1]):
        owner = owner[:-1]
    # A test's own gate puts its node id where a policy's limit has the bucket.
    title = f["bucket"] if owner == [f["bucket"]] else f"{f['bucket']} of {'/'.join(owner)}"
    return f"{title}, {f['load']}" if f.get("load") else str(title)


_LEVEL = re.compile(r"concurrency-\d+|open-loop")
