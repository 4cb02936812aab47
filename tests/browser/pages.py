"""The pages that the browser opens: one run a verdict, a hostile one, and services side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate_samples import timeline
from pytest_llmsla.reports import folder, html
from run_samples import BUCKETS, HOSTILE, Speed, release, report_of, requests, write_run

SCRIPTS = "一个模型 モデル 모델 نموذج דגם"
"""Chinese, Japanese, Korean, Arabic and Hebrew."""


def make(where: Path) -> dict[str, Path]:
    """Write every page below ``where``; report.html by name, ``services`` among them."""
    reports = {name: maker(where / name) for name, maker in _MAKERS.items()}
    pages = {name: where / name / html.REPORT_HTML for name in reports}
    three = [
        (f".llmsla/runs/{name}", report) for name, report in reports.items() if name in SERVICES
    ]
    pages["services"] = where / html.SERVICES_HTML
    pages["services"].write_text(html.render_services(three), encoding="utf-8")
    pages["strangers"] = where / "strangers.html"
    strangers = [(name, reports[name]) for name in ("pass", "inconclusive", "hostile")]
    pages["strangers"].write_text(html.render_services(strangers), encoding="utf-8")
    return pages


SERVICES = ("chat", "search", "code")
"""The three services of the article: one stopped, two sent back."""


def _run(
    here: Path, speed: Speed, *buckets: Any, each: int = 48, rate: float | None = None, **more: Any
) -> dict[str, Any]:
    """One run; ``rate``: a TGS figure put on record beside it, without its memory."""
    loaded = release(*buckets, tokens=32, **more)
    here.mkdir(parents=True)
    path = here / folder.TIMELINES_NAME
    write_run(path, loaded, requests(loaded, speed, each=each))
    if rate is not None:
        *lines, end = path.read_text(encoding="utf-8").splitlines()
        given = {"prompt_lengths": {"max": 512}, "sampling": {"greedy": True}, "concurrency": 8}
        figure = {"type": "tgs", "id": "dashboard/tgs", "value": rate, **given}
        text = "\n".join([*lines, json.dumps(figure), end]) + "\n"
        path.write_text(text, encoding="utf-8")
    return _written(here)


def _written(here: Path, **changes: Any) -> dict[str, Any]:
    report = report_of(here / folder.TIMELINES_NAME, **changes)
    folder.write_reports(report, here, formats=("json", "markdown", "html"))
    return report


def _error(here: Path) -> dict[str, Any]:
    """Answers that came in one piece: ITL cannot be measured."""
    loaded = release(*BUCKETS[:1], tokens=8)
    here.mkdir(parents=True)
    whole = [timeline(n, gaps=(), prompt=128 - n % 40) for n in range(40)]
    write_run(here / folder.TIMELINES_NAME, loaded, whole)
    return _written(here)


def _hostile(here: Path) -> dict[str, Any]:
    """Markup, control characters and every script, wherever foreign text can stand."""
    buckets = (
        {"name": "短い", "prompt_max": 128, "ttft_ms": 300},
        {"name": "طويل", "prompt_max": 512, "ttft_ms": 450},
    )
    loaded = release(*buckets, tokens=32, service=f"{SCRIPTS} {HOSTILE}")
    here.mkdir(parents=True)
    facts = {"model": f"{SCRIPTS} {HOSTILE}", "warnings": [HOSTILE, SCRIPTS]}
    path = here / folder.TIMELINES_NAME
    write_run(path, loaded, requests(loaded, Speed(itl=48, growth=0.4), each=30), target=facts)
    report = report_of(path)
    for finding in report["findings"]:
        finding.update(notes=[HOSTILE, SCRIPTS], diagnosis=[f"{HOSTILE} → {SCRIPTS}"])
    for group in report["series"]["buckets"]:
        group["stages"] = {f"{SCRIPTS}{HOSTILE}": {"median_ms": 1.0, "p95_ms": 2.0, "n": 3}}
        for one in group["slowest"]:
            one["id"] = HOSTILE
    for finding in report["findings"]:
        if finding["rule"] == "ttft":
            finding["stages"] = {SCRIPTS: 0.7, HOSTILE: 0.3}
    for column in report["series"]["resources"]["columns"]:
        column["name"] = f"{SCRIPTS[:9]} {column['name']}"
    folder.write_reports(report, here, formats=("json", "markdown", "html"))
    return report


_MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "pass": lambda here: _run(here, Speed(), each=90),
    "fail": lambda here: _run(here, Speed(ttft=220, itl=47, growth=0.3, stall=0.3)),
    "inconclusive": lambda here: _run(here, Speed(), *BUCKETS[:1], each=20),
    "error": _error,
    "hostile": _hostile,
    "chat": lambda here: _run(
        here, Speed(itl=55, spread=0.09), *BUCKETS[:2], each=90, service="chat"
    ),
    "search": lambda here: _run(here, Speed(), *BUCKETS[:2], each=90, rate=1250, service="search"),
    "code": lambda here: _run(here, Speed(itl=30), *BUCKETS[:2], each=90, rate=640, service="code"),
}
