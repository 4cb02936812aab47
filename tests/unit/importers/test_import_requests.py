"""Requests that other tools kept: every time is the tool's, and the one Gatekeeper judges it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from foreign_files import BOTH, DECLARED, RAW, TOKENS, calls, checked, policy

from gate_samples import judged, timeline
from gate_samples import policy as native
from pytest_llmsla.errors import UsageError
from pytest_llmsla.importers import read
from pytest_llmsla.reports.json_report import schema

SAMPLES = Path(__file__).parent / "samples"
WITH_GAPS = sorted(set(RAW) - {"guidellm"})


@pytest.mark.parametrize("name", RAW)
def test_times_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    """TTFT, prompt length, token count and start of each request come through unchanged."""
    given = [*calls(3, prompt=11, ttft=100), *calls(1, prompt=90, ttft=250.5)]
    (run,) = read(RAW[name](tmp_path, given))
    assert [t.ttft_ms for t in run.timelines] == pytest.approx([c.ttft for c in given], abs=1e-3)
    assert [t.prompt_tokens for t in run.timelines] == [11, 11, 11, 90]
    assert [t.output_tokens for t in run.timelines] == [TOKENS] * 4
    starts = [t.start_ns - run.timelines[0].start_ns for t in run.timelines]
    assert starts == pytest.approx([c.start * 1e6 for c in given], abs=1e3)


@pytest.mark.parametrize("name", WITH_GAPS)
def test_gaps_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    """Each gap between tokens is a sample; none is a mean."""
    gaps = (5, 80, 20, 20, 20, 20, 35)
    (run,) = read(RAW[name](tmp_path, calls(2, gaps=gaps)))
    assert run.no_itl is None
    for t in run.timelines:
        assert t.itl_ms() == pytest.approx(gaps, abs=1e-3)


@pytest.mark.parametrize("name", WITH_GAPS)
def test_the_same_requests_give_the_same_digits(name: str, tmp_path: Path) -> None:
    """Latency and failures are judged as if we had measured them."""
    given = [(70 + i * 17 % 29, (10 + i * 5 % 7,) * (TOKENS - 1)) for i in range(60)]
    rows = [
        call
        for i, (ttft, gaps) in enumerate(given)
        for call in calls(1, start=1000.0 * i, ttft=ttft, gaps=gaps)
    ]
    got = checked(RAW[name](tmp_path, rows), policy(tmp_path))
    ours = native(evidence={"preset": "fast"})
    keeper = judged(ours, [timeline(i, ttft=t, gaps=g) for i, (t, g) in enumerate(given)])
    for limit in ("short/ttft_p95", "short/itl_p95", "short/error_rate"):
        theirs, own = got.finding(limit), keeper.finding(limit)
        assert own is not None
        assert theirs["verdict"] == own.verdict == "pass"
        assert theirs["decided_at"] == own.decided_at
        for figure in ("observed", "upper", "lower"):
            assert theirs[figure] == pytest.approx(getattr(own, figure) or 0, rel=1e-4) or (
                theirs[figure] is getattr(own, figure) is None
            )


@pytest.mark.parametrize("name", RAW)
def test_a_slow_service_fails(name: str, tmp_path: Path) -> None:
    """TTFT over its limit is a FAIL in every format."""
    got = checked(RAW[name](tmp_path, calls(ttft=400)), policy(tmp_path))
    assert got.verdicts["short/ttft_p95"] == "fail"
    assert got.code == 1


@pytest.mark.parametrize("name", WITH_GAPS)
def test_slow_tokens_fail(name: str, tmp_path: Path) -> None:
    """One gap in seven over the limit is a FAIL of rule 2, though the mean keeps it."""
    got = checked(RAW[name](tmp_path, calls(gaps=(10,) * 6 + (200,))), policy(tmp_path))
    assert got.verdicts["short/itl_p95"] == "fail"


@pytest.mark.parametrize("name", RAW)
def test_requests_that_the_tool_lost_count(name: str, tmp_path: Path) -> None:
    """One failed request of sixty is red, and is the one that the report shows."""
    rows = [*calls(59), *calls(1, start=60_000.0, error="connection reset")]
    got = checked(RAW[name](tmp_path, rows), policy(tmp_path))
    found = got.finding("short/error_rate")
    assert (found["verdict"], found["exceeded"], found["requests"]) == ("fail", 1, 60)
    assert "connection reset" in found["reason"]
    assert got.code == 1


def test_all_that_rule_3_asks_for_can_pass(tmp_path: Path) -> None:
    """Sampling in the file and memory declared with its source: every rule is shown, exit 0."""
    path = RAW["servebench"](tmp_path, calls())
    got = checked(path, policy(tmp_path, target=DECLARED))
    assert set(got.verdicts.values()) == {"pass"}
    assert (got.report["verdict"], got.code) == ("pass", 0)


def test_a_baseline_that_is_asked_for_is_not_met(tmp_path: Path) -> None:
    """A policy with a baseline does not pass on results that are not compared with it."""
    path = RAW["servebench"](tmp_path, calls())
    sla = policy(tmp_path, target=DECLARED)
    sla.write_text(f"{sla.read_text()}baseline: {{path: stored}}\n")
    got = checked(path, sla)
    assert set(got.verdicts.values()) == {"pass"}
    assert (got.report["verdict"], got.code) == ("inconclusive", 2)
    assert got.report["not_measured"][0]["id"] == "baseline"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("vllm", "sampling, memory"),
        ("servebench", "memory"),
        ("guidellm", "memory"),
        ("aiperf", "sampling, memory"),
        ("inference-perf", "memory"),
    ],
)
def test_what_rule_3_misses_is_named(name: str, missing: str, tmp_path: Path) -> None:
    """Conditions that a file does not hold are named one by one, and rule 3 is a FAIL."""
    found = checked(RAW[name](tmp_path, calls()), policy(tmp_path)).finding("tgs/concurrency-1")
    assert found["verdict"] == "fail"
    assert found["reason"].startswith(f"undocumented: {missing} (")


@pytest.mark.parametrize("allow", ["", ", estimated: allow"])
def test_a_mean_per_request_shows_no_rule_2(allow: str, tmp_path: Path) -> None:
    """GuideLLM has no gaps: ITL is an error in words, also where estimates are allowed."""
    path = RAW["guidellm"](tmp_path, calls(gaps=(1,) * 6 + (40,)))
    got = checked(path, policy(tmp_path, itl=f", stall_p95_ms: 500{allow}"))
    assert got.verdicts["short/ttft_p95"] == "pass"
    for limit in ("short/itl_p95", "short/stall_p95"):
        found = got.finding(limit)
        assert found["verdict"] == "error"
        assert "rule 2 is not shown by this file" in found["reason"]
        assert found["observed"] is None
    assert got.code == 1


def test_goodput_rests_on_gaps_too(tmp_path: Path) -> None:
    """Means per request keep no promise of ITL, also where the policy takes estimates."""
    sla = policy(tmp_path, target=DECLARED, itl=", estimated: allow")
    sla.write_text(f"{sla.read_text()}goodput: {{min_share: 0.9}}\n")
    got = checked(RAW["guidellm"](tmp_path, calls(gaps=(1,) * 6 + (90,))), sla)
    found = got.finding("goodput")
    assert (found["verdict"], found["observed"]) == ("error", None)
    assert "rule 2 is not shown by this file" in found["reason"]


def test_no_windows_without_token_times(tmp_path: Path) -> None:
    """A limit on the rate needs windows; where tokens have no time it is an error."""
    sla = policy(tmp_path, target=DECLARED, tgs=", min_tokens_per_s: 1")
    found = checked(RAW["guidellm"](tmp_path, calls()), sla).finding("tgs/concurrency-1")
    assert found["verdict"] == "error"
    assert "no time of each token" in found["reason"]


def test_each_request_goes_to_its_bucket(tmp_path: Path) -> None:
    """Prompt lengths decide the bucket; lengths of no bucket are told and not judged."""
    rows = [
        c
        for i, prompt in enumerate([120, 500, 900] * 40)
        for c in calls(1, start=1000.0 * i, prompt=prompt, ttft=400 if prompt == 120 else 100)
    ]
    got = checked(RAW["vllm"](tmp_path, rows), policy(tmp_path, buckets=BOTH))
    assert got.finding("short/ttft_p95")["requests"] == 40
    assert got.verdicts["short/ttft_p95"] == "fail"
    assert got.verdicts["long/ttft_p95"] == "pass"
    assert any("40 of 120 requests lie in no bucket" in w for w in got.report["target"]["warnings"])


def test_failures_of_unknown_length_count_everywhere(tmp_path: Path) -> None:
    """A failed request whose prompt nobody counted is red in every bucket."""
    path = RAW["servebench"](tmp_path, [*calls(50), *calls(50, prompt=500)])
    doc = json.loads(path.read_text())
    rows = doc["levels"][0]["requests"]
    for i, row in enumerate(rows):
        row["start"] = float(i)
    rows[10].update(ok=False, error="refused", prompt_tokens=None)
    doc["levels"][0]["summary"] = {}
    path.write_text(json.dumps(doc))
    got = checked(path, policy(tmp_path, buckets=BOTH))
    assert got.verdicts["short/error_rate"] == got.verdicts["long/error_rate"] == "fail"


def test_no_prompt_length_no_rule_1(tmp_path: Path) -> None:
    """Requests whose prompts nobody counted bind no TTFT: red, with the words of rule 1."""
    path = RAW["servebench"](tmp_path, calls())
    doc = json.loads(path.read_text())
    for row in doc["levels"][0]["requests"]:
        row["prompt_tokens"] = None
    path.write_text(json.dumps(doc))
    found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
    assert found["verdict"] == "error"
    assert found["reason"].startswith("no prompt length: ")


@pytest.mark.parametrize("name", ["guidellm", "inference-perf"])
def test_repeated_prompts_show_no_rule_1(name: str, tmp_path: Path) -> None:
    """A prompt that was sent before may have been answered by a prefix cache: no PASS."""
    path = RAW[name](tmp_path, calls())
    text = path.read_text()
    for n in range(60):
        text = text.replace(f'p{n}\\"', 'same\\"')
    path.write_text(text)
    found = checked(path, policy(tmp_path)).finding("short/ttft_p95")
    assert found["verdict"] == "error"
    assert "had been sent before" in found["reason"]
    assert checked(path, policy(tmp_path, workload=", warm_cache: true")).verdicts[
        "short/ttft_p95"
    ] == "pass"  # fmt: skip


def test_a_busy_client_is_no_evidence(tmp_path: Path) -> None:
    """servebench records how late it was; over 5 ms its times are those of the client."""
    got = checked(RAW["servebench"](tmp_path, calls(), client_lag_p99_ms=9.0), policy(tmp_path))
    assert "client overloaded" in got.finding("short/ttft_p95")["reason"]
    assert got.verdicts["short/ttft_p95"] == "error"


class TestChunks:
    """vllm bench stamps every chunk with a choice, also one that only opens the answer."""

    @staticmethod
    def chat(folder: Path, ttft: float, gaps: tuple[float, ...], tokens: int = TOKENS) -> Path:
        path = RAW["vllm"](folder, calls(ttft=ttft, gaps=gaps))
        doc = json.loads(path.read_text())
        doc["endpoint_type"] = doc["backend"] = "openai-chat"
        doc["output_lens"] = [tokens] * 60
        doc["total_output_tokens"] = tokens * 60
        path.write_text(json.dumps(doc))
        return path

    def test_a_role_sent_early_is_no_first_token(self, tmp_path: Path) -> None:
        """17 ms to the role and 600 to the token: the file cannot tell, so rule 1 is not shown."""
        got = checked(self.chat(tmp_path, 17, (600, *(20,) * (TOKENS - 1))), policy(tmp_path))
        found = got.finding("short/ttft_p95")
        assert found["verdict"] == "error"
        assert f"{TOKENS + 1} chunks for {TOKENS} tokens" in found["reason"]

    def test_a_role_sent_with_the_token_is_left_out(self, tmp_path: Path) -> None:
        """The first token is the second chunk then, and the gaps are those between tokens."""
        path = self.chat(tmp_path, 100, (0.2, *(20,) * (TOKENS - 1)))
        (run,) = read(path)
        assert run.timelines[0].ttft_ms == pytest.approx(100.2)
        assert run.timelines[0].itl_ms() == pytest.approx([20] * (TOKENS - 1))
        got = checked(path, policy(tmp_path))
        assert got.verdicts["short/ttft_p95"] == got.verdicts["short/itl_p95"] == "pass"

    def test_several_tokens_in_a_chunk_have_no_gaps(self, tmp_path: Path) -> None:
        """Four chunks for eight tokens: neither rule is shown on a chat route."""
        got = checked(self.chat(tmp_path, 100, (45,) * 3), policy(tmp_path))
        assert got.verdicts["short/itl_p95"] == got.verdicts["short/ttft_p95"] == "error"


def test_answers_that_may_be_cut_are_not_sound(tmp_path: Path) -> None:
    """A short answer without a finish reason on record may have been cut off: it is red."""
    rows = [*calls(59), *calls(1, start=60_000.0, gaps=(20,) * 3)]
    found = checked(RAW["vllm"](tmp_path, rows), policy(tmp_path)).finding("short/error_rate")
    assert found["verdict"] == "fail"
    assert "4 of 8 tokens and no finish reason on record" in found["reason"]


def test_yaml_and_json_say_the_same() -> None:
    """GuideLLM's two forms of one run give the same requests."""
    one, two = (read(SAMPLES / f"guidellm_benchmarks.{end}") for end in ("json", "yaml"))
    assert [t.arrivals for t in one[0].timelines] == [t.arrivals for t in two[0].timelines]
    assert one[0].concurrency == two[0].concurrency == 2


def _told(name: str) -> dict[str, dict[float, float]]:
    """TTFT and ITL percentiles, ms, that a sample's tool wrote beside its requests."""
    if name.startswith("vllm"):
        doc = json.loads((SAMPLES / name).read_text(encoding="utf-8"))
        return {m: {q: doc[f"p{q:g}_{m}_ms"] for q in (50, 90, 95, 99)} for m in ("ttft", "itl")}
    if name.startswith("servebench"):
        doc = json.loads((SAMPLES / name).read_text(encoding="utf-8"))["levels"][0]["summary"]
        return {m: {q: doc[m][f"p{q}"] * 1000 for q in (50, 90, 99)} for m in ("ttft", "itl")}
    doc = json.loads((SAMPLES / "aiperf_profile_export_aiperf.json").read_text(encoding="utf-8"))
    keys = {"ttft": "time_to_first_token", "itl": "inter_chunk_latency"}
    return {m: {q: doc[key][f"p{q}"] for q in (5, 50, 95, 99)} for m, key in keys.items()}


@pytest.mark.parametrize(
    "name",
    [
        "vllm_bench_serve_chat.json",
        "vllm_bench_serve_completions.json",
        "servebench_run.json",
        "aiperf_profile_export.jsonl",
    ],
)
def test_requests_give_the_figures_that_their_tool_gave(name: str) -> None:
    """By the method that is said to be its own, to a millionth, of what was read from its file."""
    import numpy as np

    (run,) = read(SAMPLES / name)
    assert run.percentile_method == "linear interpolation (numpy)"
    found = {
        "ttft": [t.ttft_ms for t in run.timelines],
        "itl": [g for t in run.timelines for g in t.itl_ms()],
    }
    for metric, percentiles in _told(name).items():
        for q, ms in percentiles.items():
            assert float(np.percentile(found[metric], q)) == pytest.approx(ms, rel=1e-6)


def test_vllm_against_what_the_server_did() -> None:
    """Times of a real run lie within its client's own error of those the server recorded."""
    (run,) = read(SAMPLES / "vllm_bench_serve_chat.json")
    lines = (SAMPLES / "vllm_truth.jsonl").read_text().splitlines()
    truth = {r["x_request_id"].rpartition("-")[2]: r for r in map(json.loads, lines)}
    assert len(run.timelines) == len(truth) == 4
    for t in run.timelines:
        told = truth[t.id]
        sent = [at for at, k in zip(told["sent"], told["ntok"], strict=True) if k]
        assert t.tokens == t.output_tokens == len(sent)
        late = [(at - was) / 1e6 for (at, _), was in zip(t.arrivals, sent, strict=True)]
        assert late == pytest.approx([0] * len(sent), abs=5)


@pytest.mark.parametrize("name", RAW)
def test_the_report_keeps_its_schema(name: str, tmp_path: Path) -> None:
    """A report on another tool's run is a report.json like any other."""
    report: dict[str, Any] = checked(RAW[name](tmp_path, calls()), policy(tmp_path)).report
    jsonschema.Draft202012Validator(schema("report")).validate(report)
    assert report["target"]["tool"]
    assert report["target"]["warnings"]


def test_a_closed_loop_is_not_judged_as_an_open_one(tmp_path: Path) -> None:
    """Requests by a rate need a policy with that load, or their queue would not count."""
    path = RAW["vllm"](tmp_path, calls(), request_rate=2.0, max_concurrency=None)
    with pytest.raises(UsageError, match="the policy's load is closed"):
        checked(path, policy(tmp_path))
    open_loop = policy(tmp_path / "open", workload=", load: {kind: poisson, rate: 2.0}")
    with pytest.raises(UsageError, match="kept in flight"):
        checked(RAW["vllm"](tmp_path, calls()), open_loop)


def test_waiting_in_the_client_counts_in_an_open_loop(tmp_path: Path) -> None:
    """With a rate, TTFT begins when a request was due, its wait for a free place included."""
    path = RAW["vllm"](
        tmp_path, calls(), request_rate=2.0, max_concurrency=1, queue_times=[0.5] * 60
    )
    (run,) = read(path)
    assert {t.ttft_ms for t in run.timelines} == {600.0}
    with pytest.raises(UsageError, match="queue_times"):
        read(RAW["vllm"](tmp_path, calls(), request_rate=2.0, max_concurrency=1))
