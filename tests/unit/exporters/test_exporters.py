"""Figures for dashboards: the report's digits, the conventions' names and buckets, never a 0."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gate_samples import LONG, SHORT, broken, log_lines_of, policy, timeline, write_log
from pytest_llmsla import baselines
from pytest_llmsla.cli import run as llmsla
from pytest_llmsla.exporters import render, series_of
from pytest_llmsla.judging import build_report

NASTY = 'name "quoted" \\ back\nline \x1b[31m \ud800 模型'
GAPS = (10, 20, 30, 40, 50, 200, 9)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Forty requests of known times in one bucket, two of them failed; the other is not asked."""
    every = [broken(i) if i in (7, 9) else timeline(i, ttft=80 + i, gaps=GAPS) for i in range(40)]
    loaded = policy(SHORT, LONG, evidence={"preset": "fast"}, service="service 模型")
    lines = log_lines_of(loaded, every)
    lines[0]["started"] = "2026-01-01T12:00:00.000Z"
    return write_log(tmp_path / "run" / "timelines.jsonl", lines)


def exported(path: Path) -> tuple[dict[str, Any], list[Any]]:
    stored = baselines.load(path)
    report = build_report(stored.log, list(stored.gates))
    text = render(report, series_of(stored.gates))
    assert text.endswith("# EOF\n")
    return report, list(text_string_to_metric_families(text))


def samples(families: list[Any], name: str) -> list[Any]:
    return [s for family in families for s in family.samples if s.name == name]


class TestOpenMetrics:
    """OpenMetrics text as a strict parser reads it."""

    def test_figures_are_those_of_the_report(self, run: Path) -> None:
        """Limits, observed percentiles and bounds, in seconds; what is None is absent."""
        report, families = exported(run)
        shown = 0
        for f in report["findings"]:
            if f["unit"] != "ms":
                continue
            for figure in ("limit", "observed", "lower", "upper"):
                found = [
                    s.value
                    for s in samples(families, f"llmsla_{figure}_seconds")
                    if s.labels["limit"] == f["id"]
                ]
                expected = [] if f[figure] is None else [pytest.approx(f[figure] / 1000)]
                assert found == expected
                shown += len(found)
        assert shown >= 4

    def test_verdicts(self, run: Path) -> None:
        """1 only for what passed, the verdict beside it; the run as a whole likewise."""
        report, families = exported(run)
        assert report["verdict"] == "fail"
        (passed,) = samples(families, "llmsla_run_passed")
        assert passed.value == 0
        told = {s.labels["limit"]: s for s in samples(families, "llmsla_limit_passed")}
        for f in report["findings"]:
            assert told[f["id"]].value == float(f["verdict"] == "pass")
            assert told[f["id"]].labels["verdict"] == f["verdict"]
        (info,) = samples(families, "llmsla_run_info")
        assert info.labels["service"] == "service 模型"

    def test_histograms_count_sound_requests(self, run: Path) -> None:
        """Buckets count up to their bound, it included; failures are counted apart."""
        _, families = exported(run)
        name = "llmsla_time_to_first_token_seconds"
        buckets = {s.labels["le"]: s.value for s in samples(families, f"{name}_bucket")}
        given = [80 + i for i in range(40) if i not in (7, 9)]
        assert buckets["0.08"] == sum(ms <= 80 for ms in given) == 1
        assert buckets["0.1"] == sum(ms <= 100 for ms in given)
        assert buckets["+Inf"] == len(given) == 38
        (total,) = samples(families, f"{name}_sum")
        assert total.value == pytest.approx(sum(given) / 1000)
        gaps = {
            s.labels["le"]: s.value
            for s in samples(families, "llmsla_inter_token_latency_seconds_bucket")
        }
        assert (gaps["0.01"], gaps["0.05"], gaps["0.2"]) == (2 * 38, 6 * 38, 7 * 38)
        counted = {s.labels["outcome"]: s.value for s in samples(families, "llmsla_requests_total")}
        assert counted == {"ok": 38, "failed": 2}

    def test_what_was_not_measured_is_absent(self, run: Path, tmp_path: Path) -> None:
        """A bucket without requests has no figure; a run without any has none at all."""
        _, families = exported(run)
        assert "long" not in {s.labels.get("bucket") for f in families for s in f.samples}
        lines = log_lines_of(policy(), [])
        _, families = exported(write_log(tmp_path / "none.jsonl", lines))
        assert samples(families, "llmsla_observed_seconds") == []
        assert samples(families, "llmsla_time_to_first_token_seconds_count") == []
        assert [s.value for s in samples(families, "llmsla_run_passed")] == [0]

    def test_tokens_without_a_time_have_no_gaps(self, tmp_path: Path) -> None:
        """Where ITL could not be measured there is no histogram of it."""
        every = [timeline(i, token_source=None) for i in range(40)]
        _, families = exported(write_log(tmp_path / "a.jsonl", log_lines_of(policy(), every)))
        assert samples(families, "llmsla_inter_token_latency_seconds_count") == []
        assert samples(families, "llmsla_time_to_first_token_seconds_count")[0].value == 40

    def test_rates_of_several_tests_stand_side_by_side(self, run: Path) -> None:
        """Two tests at one level have a rate each; neither takes the other's place."""
        found = baselines.load(run)
        report = build_report(found.log, list(found.gates))
        (entry,) = report["tgs"]
        names = ("tgs/concurrency-1", "tests/test_a.py::test_a/tgs/concurrency-1")
        both = [{**entry, "finding": name, "tokens_per_s": n} for n, name in enumerate(names, 1)]
        families = list(text_string_to_metric_families(render({**report, "tgs": both}, [])))
        rates = samples(families, "llmsla_generated_tokens_per_second")
        assert {s.labels["limit"]: s.value for s in rates} == {names[0]: 1, names[1]: 2}

    def test_foreign_text_is_inert(self, tmp_path: Path) -> None:
        """Quotes, line breaks, escapes and lone surrogates in names break no line."""
        lines = log_lines_of(policy(service=NASTY.replace("\ud800", "")), [timeline(0)])
        lines[1]["model"] = NASTY
        _, families = exported(write_log(tmp_path / "a.jsonl", lines))
        (info,) = samples(families, "llmsla_run_info")
        assert "\x1b" not in info.labels["model"]
        assert "模型" in info.labels["model"]

    def test_the_command(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """To standard output, or whole into a file for a collector of text files."""
        assert llmsla(["export", str(run.parent)]) == 0
        text = capsys.readouterr().out
        assert text.endswith("# EOF\n")
        to = run.parent / "llmsla.prom"
        assert llmsla(["export", str(run), "--to", str(to)]) == 0
        assert to.read_text(encoding="utf-8") == text
        assert llmsla(["export", str(run), "--as", "csv"]) == 4
        assert "valid: openmetrics, otlp" in capsys.readouterr().err


class Collector(BaseHTTPRequestHandler):
    """Takes OTLP/HTTP metrics and remembers them, or refuses."""

    bodies: ClassVar[list[tuple[str, bytes]]]
    status: ClassVar[int]

    def do_POST(self) -> None:  # http.server's name
        """One export."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def collector() -> Iterator[type[Collector]]:
    class Mine(Collector):
        bodies: ClassVar[list[tuple[str, bytes]]] = []
        status: ClassVar[int] = 200

    server = HTTPServer(("127.0.0.1", 0), Mine)
    Mine.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Mine
    server.shutdown()
    server.server_close()
    thread.join()


class TestOpenTelemetry:
    """Names, units and buckets of the GenAI conventions."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("opentelemetry.sdk", reason="needs the extra [otel]")
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs [otel]")

    def message(self, run: Path) -> dict[str, Any]:
        from pytest_llmsla.cli.export import export

        found: dict[str, Any] = json.loads(export(run, "otlp"))
        return found

    def test_names_buckets_and_moments(self, run: Path) -> None:
        """Two histograms in seconds, one sample a sound request, stamped with the run's times."""
        (resource,) = self.message(run)["resourceMetrics"]
        metrics = {m["name"]: m for m in resource["scopeMetrics"][0]["metrics"]}
        ttft = metrics["gen_ai.server.time_to_first_token"]
        (point,) = ttft["histogram"]["dataPoints"]
        assert ttft["unit"] == "s"
        assert point["explicitBounds"][:3] == [0.001, 0.005, 0.01]
        assert (len(point["explicitBounds"]), point["count"]) == (16, "38")
        assert sum(map(int, point["bucketCounts"])) == 38
        assert point["startTimeUnixNano"] == str(1767268800 * 10**9)
        (point,) = metrics["gen_ai.server.time_per_output_token"]["histogram"]["dataPoints"]
        assert point["explicitBounds"] == [
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
        ]  # fmt: skip
        assert point["sum"] == pytest.approx(38 * sum(GAPS) / len(GAPS) / 1000)
        (gauge,) = metrics["llmsla.run.passed"]["gauge"]["dataPoints"]
        assert gauge["asInt"] == "0"

    def test_names_are_those_of_the_conventions(self) -> None:
        """As their own package has them."""
        names = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
        from pytest_llmsla.exporters import otel

        assert otel.TTFT == names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN
        assert otel.TPOT == names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN

    def test_attributes(self, run: Path) -> None:
        """What the conventions ask for, and bucket and level; unknown ones are left out."""
        text = run.read_text().replace(
            '"kind":"scripted","start_point"',
            '"kind":"openai","api":"completions","model":"m","url":"http://host:8000/v1",'
            '"server":{"software":"vllm"},"start_point"',
        )
        run.write_text(text)
        (resource,) = self.message(run)["resourceMetrics"]
        point = resource["scopeMetrics"][0]["metrics"][0]["histogram"]["dataPoints"][0]
        told = {a["key"]: next(iter(a["value"].values())) for a in point["attributes"]}
        assert told == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "m",
            "server.address": "host",
            "server.port": "8000",
            "llmsla.bucket": "short",
            "llmsla.concurrency": "1",
        }

    @pytest.mark.parametrize(
        ("facts", "operation"),
        [
            ('"kind":"openai","api":"chat"', "chat"),
            ('"kind":"tgi"', "text_completion"),
            ('"kind":"llamacpp"', "text_completion"),
            ('"kind":"transformers"', "chat"),
        ],
    )
    def test_the_operation_is_that_of_the_route(
        self, run: Path, facts: str, operation: str
    ) -> None:
        """A route that takes a bare text is no chat."""
        text = run.read_text(encoding="utf-8")
        run.write_text(text.replace('"kind":"scripted","start_point"', f'{facts},"start_point"'))
        (resource,) = self.message(run)["resourceMetrics"]
        point = resource["scopeMetrics"][0]["metrics"][0]["histogram"]["dataPoints"][0]
        told = {a["key"]: next(iter(a["value"].values())) for a in point["attributes"]}
        assert told["gen_ai.operation.name"] == operation

    def test_a_collector_gets_them(self, run: Path, collector: Any) -> None:
        """--otlp sends protobuf to /v1/metrics of the address."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )

        assert llmsla(["export", str(run), "--otlp", collector.url]) == 0
        ((path, body),) = collector.bodies
        assert path == "/v1/metrics"
        got = ExportMetricsServiceRequest.FromString(body)
        names = [m.name for m in got.resource_metrics[0].scope_metrics[0].metrics]
        assert "gen_ai.server.time_to_first_token" in names

    def test_a_collector_that_refuses(
        self, run: Path, collector: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Exit 3: a dashboard without the run must not go unnoticed."""
        collector.status = 400
        assert llmsla(["export", str(run), "--otlp", collector.url]) == 3
        assert "did not take the metrics" in capsys.readouterr().err

    @pytest.mark.parametrize("url", ["collector:4318", "ftp://host", "http://"])
    def test_what_is_no_address(
        self, run: Path, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A usage error that shows one."""
        assert llmsla(["export", str(run), "--otlp", url]) == 4
        assert "http://host:4318" in capsys.readouterr().err
