"""``pytest sla.yaml``: one item per limit, only where the file is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gated import Gated

IDS = [
    "sla.yaml::short::ttft_p95",
    "sla.yaml::short::itl_p95",
    "sla.yaml::short::error_rate",
    "sla.yaml::long::ttft_p95",
    "sla.yaml::long::itl_p95",
    "sla.yaml::long::error_rate",
    "sla.yaml::tgs::concurrency-1",
]


def test_one_item_per_limit(gated: Gated) -> None:
    """Each limit is a test of its own, named by bucket and metric."""
    result = gated.run("sla.yaml", "-v")
    assert result.ret == 0
    result.assert_outcomes(passed=len(IDS))
    result.stdout.fnmatch_lines([f"{nodeid} PASSED*" for nodeid in IDS])


def test_memory_limits_are_items(gated: Gated) -> None:
    """An optional memory limit is one more item."""
    gated.policy(rest="memory: {rss_peak_gib: 64}")
    result = gated.run("sla.yaml", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["sla.yaml::memory::rss_peak"])


def test_every_level_of_load_has_items_of_its_own(gated: Gated) -> None:
    """The first level keeps the plain node ids; a further one, and goodput, stand beside them."""
    gated.policy(rest="tgs: {concurrency: [1, 4]}\ngoodput: {min_share: 0.9}")
    result = gated.run("sla.yaml", "--collect-only", "-q")
    listed = [line for line in result.stdout.lines if line.startswith("sla.yaml::")]
    assert set(listed) == {
        *IDS,
        *("::concurrency-4::".join(nodeid.rsplit("::", 1)) for nodeid in IDS[:6]),
        "sla.yaml::tgs::concurrency-4",
        "sla.yaml::goodput",
        "sla.yaml::goodput::concurrency-4",
    }
    one = gated.run("sla.yaml::short::concurrency-4::ttft_p95", "--collect-only", "-q")
    assert [x for x in one.stdout.lines if x.startswith("sla.yaml::")] == [
        "sla.yaml::short::concurrency-4::ttft_p95"
    ]


def test_collect_only_lists_and_measures_nothing(gated: Gated) -> None:
    """``--collect-only`` shows the items, exits 0 and writes nothing."""
    result = gated.run("sla.yaml", "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(IDS)
    assert not (gated.path / ".llmsla").exists()


@pytest.mark.parametrize(
    "args", [["sla.yaml"], ["--sla", "sla.yaml"], ["./sla.yaml", "--sla=sla.yaml"]]
)
def test_naming_the_file_collects_it_once(gated: Gated, args: list[str]) -> None:
    """As an argument, by option or both: the same seven items."""
    result = gated.run(*args)
    assert result.ret == 0
    result.assert_outcomes(passed=len(IDS))


def test_option_adds_the_gate_to_a_suite(gated: Gated) -> None:
    """``--sla`` beside a bare run gates and runs the suite."""
    gated.tests("def test_plain(): ...", ini=False)
    gated.run("--sla", "sla.yaml").assert_outcomes(passed=len(IDS) + 1)


def test_folder_and_file_named_together(gated: Gated) -> None:
    """A file that lies in a folder that is named too is gated, and once."""
    gated.tests("def test_plain(): ...", ini=False)
    gated.run(".", "sla.yaml").assert_outcomes(passed=len(IDS) + 1)


@pytest.mark.parametrize("args", [[], ["."]])
def test_a_bare_run_never_starts_a_gate(gated: Gated, args: list[str]) -> None:
    """A policy in the folder, not named, is not collected."""
    gated.tests("def test_plain(): ...", ini=False)
    result = gated.run(*args)
    assert result.ret == 0
    result.assert_outcomes(passed=1)
    assert not gated.runs()


def test_testpaths_do_not_name_a_policy(gated: Gated) -> None:
    """testpaths belongs to the bare run, which never starts a gate."""
    gated.tests("def test_plain(): ...", ini=False)
    gated.ini("testpaths = sla.yaml test_it.py")
    gated.run()
    assert not gated.runs()


def test_a_bucket_is_measured_once(gated: Gated) -> None:
    """All items of a bucket share its requests: 38 clean ones each at preset fast."""
    gated.run("sla.yaml")
    by_id = {f["id"]: f for f in gated.report()["findings"]}
    assert {f["requests"] for i, f in by_id.items() if i.startswith("short/")} == {38}
    # The log holds both buckets' requests and the three of peak TGS, nothing twice.
    assert gated.report()["requests"]["measured"] == 2 * 38 + 3


def test_a_broken_limit_fails_its_item_alone(gated: Gated) -> None:
    """Only the broken limit is red; the block names figures, source line and limit."""
    gated.policy(itl=80)
    result = gated.run("sla.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(
        [
            "itl p95, bucket short (1–64 tokens; measured *): FAIL after 5 requests*",
            "*P95 ≥ 80.0 ms (99 %), limit 50 ms*observed 80.0 ms*",
            "*sla.yaml:9 itl.p95_ms*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "runtest" not in result.stdout.str()


def test_one_bucket_alone_is_measured_alone(gated: Gated) -> None:
    """A node id of one bucket measures that bucket; the sign-off is incomplete, so not green."""
    result = gated.run("sla.yaml::short")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    report = gated.report()
    assert report["verdict"] == "inconclusive"
    assert {n["id"] for n in report["not_measured"]} == {
        "long/ttft_p95",
        "long/itl_p95",
        "long/error_rate",
        "tgs/concurrency-1",
    }
    assert "long" not in {f["bucket"] for f in report["findings"]}


def test_unknown_node_id(gated: Gated) -> None:
    """A limit that is not in the policy is a usage error of pytest's own."""
    result = gated.run("sla.yaml::short::ttft_p59")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


BROKEN = {
    "syntax": "version: 1\nbuckets: [",
    "a list": "- 1\n- 2\n",
    "empty": "",
    "unknown key": "version: 1\ntarget: {}\nitll: {}\n"
    "buckets: [{name: a, prompt_max: 9, ttft_ms: 1}]",
    "an entry without a colon": "version: 1\ntarget: {kind: python, entry: engine.make}\n"
    "buckets: [{name: a, prompt_max: 9, ttft_ms: 1}]",
    "a limit that is text": "version: 1\ntarget: {kind: scripted, script: {}}\n"
    "buckets: [{name: a, prompt_max: 9, ttft_ms: fast}]",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("collect_only", [False, True])
def test_a_broken_policy_is_a_usage_error(gated: Gated, text: str, collect_only: bool) -> None:
    """A named policy that cannot be read ends with exit 4 and its file's name, never "no tests"."""
    (gated.path / "sla.yaml").write_text(text, encoding="utf-8")
    result = gated.run("sla.yaml", *(["--collect-only"] if collect_only else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: sla.yaml*"])


@pytest.mark.parametrize("encoding", ["gbk", "utf-16"])
def test_a_policy_in_another_encoding_is_recognised(gated: Gated, encoding: str) -> None:
    """Whatever its name, a policy in another encoding is refused as one, not passed over."""
    text = gated.policy().read_text(encoding="utf-8") + "# 延迟\n"
    (gated.path / "gate.yml").write_bytes(text.encode(encoding))
    result = gated.run("gate.yml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: gate.yml*{encoding.upper()}*"])


def test_a_policy_that_is_not_there(gated: Gated) -> None:
    """``--sla`` with a path that is no file says so."""
    result = gated.run("--sla", "nosuch.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --sla nosuch.yaml: does not exist*"])


def test_another_plugins_yaml_is_left_alone(gated: Gated) -> None:
    """YAML that is no policy is not ours, even when it is named."""
    (gated.path / "cases.yaml").write_text("cases:\n  - name: a\n", encoding="utf-8")
    result = gated.run("cases.yaml")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED or (
        result.ret == pytest.ExitCode.USAGE_ERROR  # pytest 8: "not found"
    )
    assert "policy" not in result.stderr.str()


def test_two_policies_in_one_run(gated: Gated) -> None:
    """Two services at once would compete for the machine: refused, with the way out."""
    gated.policy("sla-other.yaml")
    result = gated.run("sla.yaml", "sla-other.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: two SLA policies in one run: *run them one after the other*"]
    )


IGNORE = """
    def pytest_ignore_collect(collection_path):
        return True if collection_path.suffix == ".yaml" else None
"""


@pytest.mark.parametrize("args", [["."], []], ids=["folder", "bare"])
@pytest.mark.parametrize("folder", [".", ".ci", "build"])
def test_a_named_policy_is_never_left_out(gated: Gated, args: list[str], folder: str) -> None:
    """Ignore rules are for files that are found; a policy that was named is gated, wherever."""
    gated.tests("def test_plain(): ...", ini=False)
    gated.pytester.makeconftest(IGNORE)
    (gated.path / folder).mkdir(exist_ok=True)
    (gated.path / "sla.yaml").rename(gated.path / folder / "sla.yaml")
    result = gated.run(*args, "--sla", f"{folder}/sla.yaml")
    assert result.ret == 0
    result.assert_outcomes(passed=len(IDS) + 1)


def test_a_policy_beside_its_own_folder(gated: Gated) -> None:
    """The suite and the gate both run, in the order they were named."""
    gated.tests("def test_plain(): ...", ini=False)
    result = gated.run("sla.yaml", ".", "-v")
    result.assert_outcomes(passed=len(IDS) + 1)
    result.stdout.fnmatch_lines(["sla.yaml::short::ttft_p95 PASSED*", "test_it.py::test_plain*"])


def test_last_failed_elsewhere(gated: Gated) -> None:
    """``--lf`` that leaves the policy out leaves its limits unmeasured, and says so."""
    gated.tests("def test_plain(): assert 0", ini=False)
    assert gated.run("test_it.py", "sla.yaml").ret == pytest.ExitCode.TESTS_FAILED
    gated.tests("def test_plain(): ...", ini=False)
    result = gated.run("test_it.py", "--sla", "sla.yaml", "--lf")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert gated.report()["complete"] is False


@pytest.mark.parametrize("kind", ["python", "scripted"])
def test_the_engine_beside_the_policy_is_found_from_another_folder(gated: Gated, kind: str) -> None:
    """target.entry is looked for in the policy's folder first, then in the working directory."""
    name = f"engine_beside_{kind}"
    text = gated.policy().read_text(encoding="utf-8")
    old = text[text.index("target:") : text.index("workload:")]
    team = gated.path / "team"
    team.mkdir()
    policy = team / "sla.yaml"
    policy.write_text(
        text.replace(old, f"target: {{kind: {kind}, entry: '{name}:make'}}\n"), encoding="utf-8"
    )
    engine = (
        "from pytest_llmsla.targets.scripted import ScriptedTarget\n"
        "class Engine:\n"
        "    def __init__(self): self.now = 0\n"
        "    def clock_ns(self): return self.now\n"
        "    def count(self, prompt, system): return len(prompt.split())\n"
        "    def generate(self, prompt, *, max_new_tokens, sampling):\n"
        "        for n in range(max_new_tokens):\n"
        "            self.now += 20_000_000\n"
        "            yield n\n"
        "def make():\n"
    )
    scripted = "    return ScriptedTarget.load({'script': {'ttft_ms': 100, 'itl_ms': 20}})\n"
    made = "    return Engine()\n" if kind == "python" else scripted
    (team / f"{name}.py").write_text(engine + made, encoding="utf-8")
    (gated.path / f"{name}.py").write_text("raise RuntimeError('the other one')\n")
    gated.run("team/sla.yaml")
    assert gated.verdicts()["short/ttft_p95"] == "pass"
    assert gated.verdicts()["long/itl_p95"] == "pass"
