"""Numbers that no tool measured, in every place of every format: refused in words, never a PASS."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_files import DECLARED, RAW, SUMMARIES, VALUES, calls, checked, policy, write

from pytest_llmsla.errors import LlmslaError, UsageError
from pytest_llmsla.importers import documents, read

HUGE = (10**400, -(10**400), 1e305, 1e308, -1e308, math.nan, math.inf, -math.inf, "1e999")
SAMPLES = Path(__file__).parent / "samples"
REAL = {
    "aiperf": ("aiperf_profile_export.jsonl", "aiperf_profile_export_aiperf.json"),
    "servebench": ("servebench_run.json",),
    "vllm, chat": ("vllm_bench_serve_chat.json",),
    "vllm, completions": ("vllm_bench_serve_completions.json",),
}
_LIST = 2  # rows of a list that are changed: the others are read by the same code


def places(doc: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each number, of the first rows of a list only; LLMPerf writes some as text."""
    if isinstance(doc, dict):
        for key, value in doc.items():
            yield from places(value, (*at, key))
    elif isinstance(doc, list):
        for n, value in enumerate(doc[:_LIST]):
            yield from places(value, (*at, n))
    elif not isinstance(doc, bool) and (isinstance(doc, (int, float)) or str(doc).isdigit()):
        yield at


def put(doc: Any, at: tuple[Any, ...], value: object) -> Any:
    """``doc`` with ``value`` there; what is not on the way is shared."""
    if not at:
        return value
    inner = put(doc[at[0]], at[1:], value)
    if isinstance(doc, dict):
        return {**doc, at[0]: inner}
    return [*doc[: at[0]], inner, *doc[at[0] + 1 :]]


def passed(path: Path, sla: Path) -> set[str]:
    """Limits that pass; none where the file is refused. Any other exception breaks the test."""
    try:
        verdicts = checked(path, sla).verdicts
    except LlmslaError:
        return set()
    return {name for name, verdict in verdicts.items() if verdict == "pass"}


def ask(path: Path, sla: Path, each: int = len(HUGE)) -> None:
    """Numbers of ``path`` and the files beside it become :data:`HUGE`, in turn ``each`` of them."""
    before = passed(path, sla)
    asked = 0
    for file in sorted(path.parent.iterdir()):
        whole = file.read_bytes()
        docs = documents(file)
        for at in places(docs):
            for value in [HUGE[(asked + k) % len(HUGE)] for k in range(each)]:
                write(file, *put(docs, at, value))
                try:
                    new = passed(path, sla) - before
                except Exception as e:
                    raise AssertionError(f"{file.name} {at} {value!s:.20}: {e!r:.200}") from e
                assert not new, f"{file.name} {at} {value!s:.20}: passes {new}"
                asked += 1
        file.write_bytes(whole)
    assert asked >= 10 * each


@pytest.mark.parametrize("name", [*RAW, *VALUES])
def test_any_number_of_requests(name: str, tmp_path: Path) -> None:
    """In requests and the files beside them; rule 1 fails before, rule 2 passes where shown."""
    make = {**RAW, **VALUES}[name]
    path = make(tmp_path / "results", calls(24, ttft=400))
    ask(path, policy(tmp_path, target=DECLARED))


@pytest.mark.parametrize("name", SUMMARIES)
def test_any_number_of_a_summary(name: str, tmp_path: Path) -> None:
    """Percentiles, counts, lengths and loads."""
    path = write(tmp_path / "results" / "summary.json", SUMMARIES[name]())
    ask(path, policy(tmp_path, target=DECLARED))


@pytest.mark.parametrize("name", REAL)
def test_any_number_of_a_sample(name: str, tmp_path: Path) -> None:
    """As real tools write it, with all that this code does not read."""
    folder = tmp_path / "results"
    folder.mkdir()
    for file in REAL[name]:
        (folder / file.removeprefix("aiperf_")).write_bytes((SAMPLES / file).read_bytes())
    path = folder / REAL[name][0].removeprefix("aiperf_")
    ask(path, policy(tmp_path, target=DECLARED), each=1)


def test_a_refused_number_names_its_place(tmp_path: Path) -> None:
    """File, field, and the number as far as it can be read."""
    path = RAW["aiperf"](tmp_path, calls(3))
    rows = documents(path)
    where = ("metrics", "request_latency", "value")
    for value, words in (
        (1e305, "is 1e\\+305"),
        (1e17, "is 1.*valid: a duration"),
        (10**400, "is 1000"),
    ):
        write(path, *put(rows, (1, *where), value))
        with pytest.raises(UsageError, match=f"line 2.metrics.request_latency {words}") as told:
            read(path)
        assert "damaged" in str(told.value)
    path = RAW["vllm"](tmp_path, calls(3), num_prompts=10**400)
    with pytest.raises(UsageError, match=r"num_prompts is 1000.*no time or count is that large"):
        read(path)


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 9000])
def test_a_number_that_python_writes_no_more(digits: str, tmp_path: Path) -> None:
    """YAML has hexadecimal ones, and no message could hold them."""
    path = tmp_path / "benchmarks.yaml"
    path.write_text(f"metadata: {{version: {digits}}}\nbenchmarks: []\nargs: {{}}\n")
    with pytest.raises(UsageError, match="cut or damaged"):
        read(path)


@pytest.mark.parametrize("value", [1e999, -1e999, math.nan, 10**30])
def test_sampling_that_none_can_have_sent(value: float, tmp_path: Path) -> None:
    """It documents no sampling."""
    path = RAW["guidellm"](tmp_path, calls(3))
    rows = documents(path)[0]
    for row in rows["benchmarks"][0]["requests"]["successful"]:
        row["request_args"] = json.dumps({"body": {"max_tokens": 8, "temperature": value}})
    assert read(path)[0].sampling == {"temperature": 0.8}
    write(path, rows)
    assert read(path)[0].sampling == {}
