"""report.html: the same figures as everywhere, inert whatever stands in it, and self-contained."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from page_reader import Page
from report_samples import (
    HOSTILE,
    itl,
    passed,
    report,
    rows_of_markdown,
    tgs,
    tgs_entry,
    ttft,
    undecided,
)

from gate_samples import timeline
from pytest_llmsla.errors import UsageError
from pytest_llmsla.finding import CONDITIONS
from pytest_llmsla.gating.properties import properties_of
from pytest_llmsla.reports import folder, html, markdown, phrases, summary, terminal
from pytest_llmsla.reports.html.pictures.canvas import drawing
from pytest_llmsla.reports.html.pictures.run import staircase
from run_samples import Speed, release, report_of, requests, write_run

FINDINGS = (
    ttft(),
    itl(),
    tgs(),
    undecided(id="long/ttft_p95", bucket="long", observed=300.04),
    passed(id="medium/ttft_p95", bucket="medium", observed=299.96),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run with all its series: TTFT passes, ITL grows over its limit."""
    loaded = release(tokens=24)
    path = tmp_path_factory.mktemp("run") / "timelines.jsonl"
    write_run(path, loaded, requests(loaded, Speed(itl=46, growth=0.5, stall=0.2), each=40))
    return report_of(path)


def test_a_number_is_the_same_in_every_format(measured: dict[str, Any]) -> None:
    """Limit, observed, bound and requests read the same in HTML, Markdown, terminal and JSON."""
    for given in (report(*FINDINGS), measured):
        page = Page(html.render(given)).limits()
        in_markdown = rows_of_markdown(markdown.render(given))
        in_terminal = terminal.render(given, width=400)
        assert set(page) == set(in_markdown) == {f["id"] for f in given["findings"]}
        for f in given["findings"]:
            cells, row = page[f["id"]], in_markdown[f["id"]]
            observed = cells["Observed"].removesuffix(
                phrases.percentiles(f) if f["rule"] == "itl" else ""
            )
            assert observed.strip() == row[2] == phrases.observed(f)
            assert cells["Limit value"] == row[1] == phrases.limit(f)
            assert cells["Bound"] == row[3] == (phrases.bound(f) or "–")
            assert cells["Requests"] == row[4] == str(f["requests"])
            assert cells["Verdict"].startswith(f["verdict"].upper())
            assert row[5].startswith(f["verdict"].upper())
            assert phrases.observed(f) in in_terminal
            assert phrases.bound(f) in in_terminal


def test_junit_carries_the_figures_of_the_report() -> None:
    """The properties hold the very numbers of report.json, not rounded ones."""
    given = report(*FINDINGS)
    for finding, f in zip(FINDINGS, given["findings"], strict=True):
        [(name, words)] = properties_of([finding])
        assert name == f"sla {f['id']}"
        assert f"observed={f['observed']}" in str(words)
        assert f"verdict={f['verdict']}" in str(words)


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "conditional", "error"])
def test_the_page_leads_with_its_verdict(verdict: str) -> None:
    """Title, head and sheet to sign say the verdict in a word and a shape of its own."""
    page = Page(html.render(report(ttft(verdict=verdict), verdict=verdict)))
    assert page.all("title")[0].shown.endswith(f": {verdict.upper()}")
    for shown in page.all("p", class_="verdict"):
        assert shown.shown.startswith(verdict.upper())
    shapes = [e.attributes["href"] for e in page.elements if e.tag == "use"]
    assert f"#i-{verdict}" in shapes[:1]
    if verdict != "pass":
        assert "#i-pass" not in shapes


def test_an_incomplete_run_says_so_first_and_what_is_missing() -> None:
    """PASS stands nowhere over a run that lacks a limit."""
    missing = [{"id": "long/itl_p95", "reason": "deselected"}]
    given = report(passed(), verdict="inconclusive", complete=False, not_measured=missing)
    page = Page(html.render(given))
    assert "INCONCLUSIVE, incomplete" in page.all("title")[0].shown
    assert all("incomplete" in p.shown for p in page.all("p", class_="verdict"))
    assert "long/itl_p95: deselected" in page.shown()
    assert page.all("input", class_="reason"), "a release over it needs a reason"


def hostile_report(measured: dict[str, Any]) -> dict[str, Any]:
    """A report with every hostile text in every place that foreign text can reach."""
    every = " ".join(HOSTILE)
    findings = [
        ttft(
            id=f"test_it.py::test[{text}]/ttft_p95",
            bucket=text,
            reason=text,
            source=text,
            start_point=text,
            diagnosis=(text,),
            notes=(text,),
            bucket_range=text,
            load=text,
            stages={text: 0.9},
            attempts=({"attempt": text, "requests": 1, "observed": 2.0},) * 2,
        )
        for text in HOSTILE
    ]
    given = json.loads(json.dumps(measured["series"]))
    for group, text in zip(given["buckets"], HOSTILE, strict=False):
        group.update(bucket=text, gate=f"test_it.py::test[{text}]", range=text)
        group["stages"] = {text: {"median_ms": 1.0, "p95_ms": 2.0, "n": 3}}
        for one in group["slowest"]:
            one["id"] = text
    for column, text in zip(given["resources"]["columns"], HOSTILE, strict=False):
        column.update(name=text, about=text)
    conditions = {name: {text: text for text in HOSTILE} for name in CONDITIONS}
    return report(
        *findings,
        service=every,
        reason=every,
        target={"kind": every, "model": every, every: {every: [every]}, "warnings": [every]},
        environment={"hostname": every, every: every},
        policy={"path": every, "sha256": every, "preset": every, "alpha_pass": 0.05},
        warmup={every: {"note": every, "steady": False}},
        errors=[{"bucket": every, "reason": every, "count": 3}],
        not_measured=[{"id": every, "reason": every}],
        complete=False,
        tgs=[tgs_entry(kind=every, conditions=conditions, finding=every)],
        prompt_notes=[every],
        reruns=[{"id": every, "status": every, "reruns": 1}],
        series=given,
    )


# fmt: off
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "svg", "symbol", "circle", "path",
    "rect", "use", "g", "defs", "clippath", "text", "a", "header", "div", "p", "h1", "h2",
    "h3", "dl", "dt", "dd", "nav", "main", "section", "table", "thead", "tbody", "tr", "th",
    "td", "small", "span", "bdi", "b", "strong", "ul", "li", "details", "summary", "figure",
    "figcaption", "fieldset", "legend", "label", "input", "code", "script", "wbr",
}
# fmt: on


def test_foreign_text_stays_text(measured: dict[str, Any]) -> None:
    """No tag, attribute, script, link or control character comes from a model, prompt or test."""
    given = hostile_report(measured)
    source = html.render(given, history=[{"run": HOSTILE[0], "verdict": HOSTILE[0]}])
    page = Page(source)
    assert {e.tag for e in page.elements} <= ALLOWED
    names = {name for e in page.elements for name in e.attributes}
    assert not {n for n in names if n.startswith("on") or n == "src"}
    links = [e.attributes[n] for e in page.elements for n in ("href",) if n in e.attributes]
    assert all(str(link).startswith("#") for link in links)
    assert len(page.all("script")) == 2
    assert len(page.all("tr", class_="limit")) >= len(HOSTILE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", source)
    assert "\\u202eoverride" in page.shown()
    assert "<img src=x onerror=alert(1)>" in page.shown(), "it is shown, as text"


def test_the_data_in_the_page_reads_back(measured: dict[str, Any]) -> None:
    """The JSON in the script element ends no element and says what report.json says."""
    given = hostile_report(measured)
    source = html.render(given)
    [text] = re.findall(r'id="llmsla-findings">(.*?)</script>', source, re.DOTALL)
    assert "<" not in text
    data = json.loads(text)
    assert data["service"] == given["service"]
    assert [f["id"] for f in data["findings"]] == [f["id"] for f in given["findings"]]
    assert data["verdict"] == given["verdict"]


def test_nothing_outside_is_named(measured: dict[str, Any]) -> None:
    """No address, import or font of elsewhere; a policy in the page forbids loading anyway."""
    source = html.render(measured)
    assert not re.search(r"(?i)https?:|//[a-z]|@import|@font-face|url\((?!#)", source)
    [policy] = [
        e.attributes["content"]
        for e in Page(source).all("meta")
        if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert str(policy).startswith("default-src 'none'")


def test_every_picture_has_a_name_a_description_and_its_data(measured: dict[str, Any]) -> None:
    """role=img, a title and a description that exist, a table with rows; ids are unique."""
    page = Page(html.render(measured))
    ids = [e.attributes["id"] for e in page.elements if e.attributes.get("id")]
    assert len(ids) == len(set(ids))
    pictures = [e for e in page.all("svg") if e.attributes.get("role") == "img"]
    assert len(pictures) == len(page.all("figure")) == 1 + 3 * 6 + 1 + 1
    for picture in pictures:
        named = str(picture.attributes["aria-labelledby"]).split()
        assert len(named) == 2
        assert all(name in ids for name in named)
    for figure in page.all("figure"):
        assert "Data" in figure.shown
    for e in page.elements:
        if e.tag == "use":
            assert str(e.attributes["href"])[1:] in ids


def test_a_report_without_series_is_a_page_all_the_same() -> None:
    """A report.json of an earlier version has its figures and no picture, and says why."""
    page = Page(html.render(report(*FINDINGS)))
    assert not page.all("figure")
    assert "holds no series" in page.shown()
    assert set(page.limits()) == {f.id for f in FINDINGS}


def test_the_same_report_gives_the_same_page(measured: dict[str, Any]) -> None:
    """Rendered again it is the same byte for byte, so that nothing looks changed."""
    assert html.render(measured) == html.render(json.loads(json.dumps(measured)))


def test_a_missing_extra_is_told_and_stops_no_other_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib JSON and Markdown are written; asking for the page itself is an error."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'pytest-llmsla[html]'" in html.missing()
    folder.write_reports(report(passed()), tmp_path, formats=("json", "markdown", "html"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.json", "report.md"]
    with pytest.raises(UsageError, match="needs matplotlib"):
        html.render(report(passed()))


def test_what_cannot_be_read_is_not_drawn(tmp_path: Path) -> None:
    """Requests that failed or are unusable are counted and are in no picture."""
    loaded = release(tokens=8)
    given = [timeline(n, bucket="short", prompt=120) for n in range(12)]
    given += [timeline(12 + n, bucket="short", prompt=700, ttft=9000, unit=12 + n) for n in (0, 1)]
    made = report_of(write_run(tmp_path / "t.jsonl", loaded, given))
    [group] = made["series"]["buckets"]
    assert (group["requests"], group["failed"]) == (14, 2)
    assert max(group["lengths"]["ttft_ms"]) == 100
    assert "2 of them failed" in Page(html.render(made)).shown()


BASELINE = {
    "verdict": "fail",
    "compared": 1,
    "of": 1,
    "runs": ["a", "b", "c"],
    "tolerance": 0.1,
    "reason": "",
    "left_out": [{"run": "d", "reason": "another machine"}],
    "rows": [
        {
            "id": "short/ttft_p95",
            "unit": "ms",
            "verdict": "fail",
            "base": 100.0,
            "new": 140.0,
            "ratio": 1.4,
            "lower": 1.2,
            "upper": 1.6,
            "reason": "slower than the tolerance",
        }
    ],
}


def test_a_run_slower_than_its_baseline_is_never_all_well() -> None:
    """Page and Markdown say the comparison's verdict in their heads and list its metrics."""
    given = report(passed(), verdict="fail", baseline=BASELINE)
    page, text = Page(html.render(given)), markdown.render(given)
    assert "all hold" not in page.all("p", class_="tally")[0].shown.split(". Baseline: ")[1]
    assert "SLOWER: compared 1 of 1 metrics" in page.all("p", class_="tally")[0].shown
    assert "stopped" in page.all("p", class_="verdict")[0].shown
    for words in ("100.0 ms to 140.0 ms", "d: another machine"):
        assert words in page.shown()
        assert words in text


def test_every_level_of_load_has_a_heading_of_its_own() -> None:
    """Findings of one bucket at two levels are never listed as one."""
    given = report(
        passed(load="at concurrency 1"),
        passed(
            id="short/concurrency-4/ttft_p95", concurrency=4, load="at concurrency 4", requests=152
        ),
        passed(id="t.py::test[a/b]/ttft_p95"),
        verdict="pass",
    )
    assert list(summary.buckets(given)) == [
        "short, at concurrency 1",
        "short, at concurrency 4",
        "short of t.py::test[a/b]",
    ]
    assert (
        "at concurrency 4"
        in Page(html.render(given)).limits()["short/concurrency-4/ttft_p95"]["Bucket"]
    )


def test_losses_of_a_level_are_seen_on_paper() -> None:
    """What a level lost to stands in the open, not behind a click."""
    losses = [{"cause": "queue", "share": 0.2, "evidence": "waits grew"}]
    entry = tgs_entry(kind="concurrent", concurrency=4, efficiency=0.8, losses=losses)
    page = Page(html.render(report(passed(), tgs=[entry], verdict="pass")))
    assert any("likely lost to queue" in p.shown and "80 % of 4 times the rate of one" in p.shown
               for p in page.all("p"))  # fmt: skip


EXTREMES: dict[str, list[Any]] = {
    "one request of one token": [timeline(0, gaps=())],
    "two equal requests": [timeline(0), timeline(1)],
    "nothing takes time": [timeline(n, ttft=0, gaps=(0,) * 7) for n in range(4)],
    "gaps of nothing and one of a minute": [timeline(n, gaps=(0, 0, 0, 0, 0, 60_000, 0))
                                            for n in range(9)],
    "hours": [timeline(n, ttft=5e6, gaps=(1e6,) * 7) for n in range(3)],
    "no prompt length": [timeline(n, prompt=None) for n in range(3)],
    "many tokens an arrival": [timeline(n, arrivals=((n * 10**16 + 5, 8),)) for n in range(3)],
    "from a microsecond to a minute": [
        timeline(n, ttft=0.001 * 10**n, gaps=(0.001, 0.1, 1, 10, 100, 1000, 60_000))
        for n in range(8)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_every_shape_of_data_can_be_drawn(tmp_path: Path, name: str) -> None:
    """No warning, no failure and no NaN from empty, equal, zero or far-spread figures."""
    loaded = release({"name": "short", "prompt_max": 128, "ttft_ms": 300}, tokens=8)
    path = write_run(tmp_path / "t.jsonl", loaded, EXTREMES[name], resources=False)
    source = html.render(report_of(path))
    assert not re.search(r"[\" ]-?(nan|inf)\b", source, re.IGNORECASE)
    assert Page(source).all("tr", class_="limit")


@pytest.mark.parametrize(
    "given",
    [
        report(passed(), verdict="pass", complete=False),
        report(verdict="pass"),
        report(ttft(), verdict="pass"),
        report(passed(), verdict="no such verdict"),
    ],
)
def test_only_a_complete_pass_looks_like_one(given: dict[str, Any]) -> None:
    """A damaged or edited report.json that says PASS over something missing has no green head."""
    for page in (Page(html.render(given)), Page(html.render_services([("x", given)]))):
        head = page.all("header")[0]
        assert "pass" not in str(head.attributes.get("class")).split()
        assert "passed" not in head.shown
    outcome = Page(html.render_services([("x", given)])).all("span", class_="chip")[0]
    assert "pass" not in str(outcome.attributes["class"]).split()


def test_words_that_need_it_are_explained(measured: dict[str, Any]) -> None:
    """Page and Markdown spell out the three metrics and say what a bound's words mean."""
    for shown in (Page(html.render(measured)).shown(), markdown.render(measured)):
        for words in (
            "time to first token",
            "inter-token latency",
            "tokens generated per second",
            "however often it was looked at",
            "shortest, median and longest prompt",
        ):
            assert words in shown  # fmt: skip


def test_facts_of_the_policy_and_of_memory_read_as_words() -> None:
    """Checksums say what they are of; memory has its unit and no digits that nobody measured."""
    sums = {"path": "sla.yaml", "sha256": "a" * 64, "recorded_sha256": "b" * 64}
    conditions = {"memory": {"rss_peak_gib": 0.0597878, "device": "cpu"}}
    given = report(passed(), policy=sums, tgs=[tgs_entry(conditions=conditions)])
    page = Page(html.render(given))
    for shown in (page.shown(), markdown.render(given)):
        assert "resident memory, peak: 0.06 GiB" in shown
        assert "SHA-256 of the policy that measured" in shown
    assert "recorded_sha256" not in markdown.render(given)
    assert "recorded_sha256" not in {e.shown for e in page.all("dt")}


def test_levels_are_told_apart() -> None:
    """One TGS limit a level: each says its level. A table of few columns stacks on a phone."""
    given = report(
        tgs(load="at concurrency 1", verdict="pass"),
        tgs(id="tgs/concurrency-4", load="at concurrency 4", concurrency=4, verdict="pass"),
        tgs=[tgs_entry(), tgs_entry(kind="concurrent", concurrency=4)],
    )
    page = Page(html.render(given))
    heads = [e.shown for e in page.all("summary") if "tgs documented" in e.shown]
    assert len(heads) == len(set(heads)) == 2
    assert "at concurrency 4" in heads[1]
    for one in (page, Page(html.render_services([("a", given)]))):
        [table] = one.all("table", class_="stack")
        assert table.attributes["role"] == "table"
        cells = one.all("td", role="cell")
        assert all(e.attributes.get("data-name") or "colspan" in e.attributes for e in cells)
        assert {"Documented", "Outcome"} & {e.attributes.get("data-name") for e in cells}


def test_points_of_several_levels_have_shapes_of_their_own(measured: dict[str, Any]) -> None:
    """The picture of all buckets names each level in its legend; of one level it has one mark."""
    groups = measured["series"]["buckets"]
    found = {f["bucket"]: f for f in measured["findings"] if f["rule"] == "ttft"}
    for loads in ((), ("at concurrency 1", "at concurrency 4"), tuple("abcdef")):
        drawn = [
            (group, [{**found[group["bucket"]], "load": load}])
            for load in loads or ("",)
            for group in groups
        ]
        with drawing():
            shown = staircase("stairs", drawn)
        assert shown is not None
        points = [key for key in shown.keys if key.mark != "limit"]
        assert len({key.mark for key in points}) == len(points) == min(len(loads) or 1, 4)
        assert all(any(load in key.text for key in points) for load in loads)
