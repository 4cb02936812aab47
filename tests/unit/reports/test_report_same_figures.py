"""One figure, one text: whatever a run measured, every report writes it with the same digits."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_reader import Page
from report_samples import passed, report, rows_of_markdown, tgs, ttft

from pytest_llmsla import series
from pytest_llmsla.gating.properties import properties_of
from pytest_llmsla.judging import build_report, judge_log
from pytest_llmsla.log import read_run
from pytest_llmsla.reports import csv_table, html, json_report, markdown, numbers, phrases, terminal
from pytest_llmsla.stats import nearest_rank
from run_samples import BUCKETS, Speed, release, requests, write_run

FIGURES = st.floats(1e-3, 1e6, allow_nan=False)
SPEEDS = st.builds(
    Speed,
    ttft=st.floats(1, 600),
    per_token=st.floats(0, 1),
    itl=st.floats(1, 90),
    spread=st.sampled_from([0.0, 0.01, 0.2]),
    stall=st.sampled_from([0.0, 0.3]),
)


def same_everywhere(given: dict[str, Any]) -> None:
    """HTML, Markdown and terminal hold the texts of ``phrases``; JSON gives all of it back."""
    page, rows = Page(html.render(given)).limits(), rows_of_markdown(markdown.render(given))
    shown = terminal.render(given, width=500)
    assert set(page) == set(rows) == {f["id"] for f in given["findings"]}
    for f in given["findings"]:
        cells, row = page[f["id"]], rows[f["id"]]
        figures = (phrases.limit(f), phrases.observed(f), phrases.bound(f) or numbers.NOTHING)
        small = phrases.percentiles(f) if f["rule"] == "itl" else ""
        observed = cells["Observed"].removesuffix(small).strip()
        assert (cells["Limit value"], observed, cells["Bound"]) == figures
        assert tuple(row[1:4]) == figures
        assert cells["Requests"] == row[4] == str(f["requests"])
        in_terminal = (phrases.observed(f), phrases.bound(f), phrases.asked(f), str(f["requests"]))
        assert all(text in shown for text in in_terminal)
    assert json.loads(json_report.dumps(given)) == json.loads(json.dumps(given))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(speed=SPEEDS, each=st.integers(2, 30), seed=st.integers(0, 9))
def test_every_format_gives_the_figures_of_a_run(speed: Speed, each: int, seed: int) -> None:
    """Random runs: pages, table, JUnit and CSV agree with report.json, to the last digit."""
    loaded = release(*BUCKETS[:2], tokens=8)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "timelines.jsonl"
        write_run(path, loaded, requests(loaded, speed, each=each, seed=seed), resources=False)
        log = read_run(path)
    gates = judge_log(log)
    # Pictures take seconds and have texts of the same functions; one run below has them.
    made = {k: v for k, v in build_report(log, gates).items() if k != "series"}
    same_everywhere(made)
    findings = [f for gate in gates for f in gate.findings()]
    assert [f.to_json() for f in findings] == made["findings"]
    for f, (_, words) in zip(made["findings"], properties_of(findings), strict=True):
        told = dict(re.findall(r"(\w+)=(\S+)", str(words).partition(" reason=")[0]))
        for key in ("observed", "limit", "lower", "upper", "requests", "exceeded"):
            assert (float(told[key]) if key in told else None) == f[key]
    table = csv_table.dumps(series.REQUEST_COLUMNS, series.request_rows(log.timelines))
    asked = list(csv.DictReader(io.StringIO(table, newline="")))
    for f in (f for f in made["findings"] if f["rule"] == "ttft"):
        times = [
            float(row["ttft_ms"])
            for row in asked
            if row["bucket"] == f["bucket"] and row["warmup"] == "false"
        ]
        assert len(times) == f["requests"]
        again = numbers.measured(nearest_rank(times, 0.95), "ms", against=f["limit"])
        assert again == phrases.observed(f)


@settings(max_examples=25, deadline=None)
@given(FIGURES, FIGURES, FIGURES, FIGURES, st.integers(0, 10**6))
def test_every_format_gives_the_same_text_of_any_figure(
    limit: float, observed: float, lower: float, upper: float, requests: int
) -> None:
    """Small, large and close to the limit: no format rounds by itself or crosses the limit."""
    own = {"limit": limit, "lower": lower, "upper": upper, "requests": requests}
    made = report(
        ttft(observed=observed, **own),
        passed(id="long/ttft_p95", observed=observed, **own),
        tgs(observed=observed, requests=requests),
    )
    same_everywhere(made)
    for f in made["findings"][:2]:
        shown = float(phrases.observed(f).split()[0])
        assert (shown > limit, shown < limit) == (observed > limit, observed < limit)
