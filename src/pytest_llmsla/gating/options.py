"""Every command line option and ini value, read once into a frozen :class:`Options`.

Loaded in every pytest run, used or not: nothing here may cost time at import.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import pytest

PRESETS = ("fast", "normal", "strict", "observed")
SUFFIXES = (".yaml", ".yml")

MARK = "sla"
MARK_HELP = (
    "sla(bucket | prompt_max [, prompt_min], ttft_ms, itl_p95_ms, …): hold this test's model "
    "calls to a latency SLA (pytest-llmsla)"
)

# Enough to tell a policy from another plugin's YAML without parsing it: a policy with broken
# syntax must still be recognised, so that its error is shown instead of "no tests".
_KEY = r"""(?m)(?:^|[{{,])\s*["']?{}["']?\s*:"""


@dataclass(frozen=True)
class Options:
    """What the user asked for. Paths are absolute."""

    policy: Path | None
    """The sla.yaml whose limits are collected: named as an argument or by ``--sla``."""
    by_option: bool
    """True when ``--sla`` names it: its limits are then part of this run whatever is selected."""
    default_policy: Path | None
    """ini ``sla_policy``: gives ``@sla`` tests their defaults, is not collected."""
    report_dir: Path | None
    preset: str | None
    signoff: bool
    inconclusive: Literal["fail", "warn"]
    resume: Path | None
    """The run to continue: a run folder, a report folder or a timelines.jsonl."""
    baseline: Path | None
    """Stored runs that this one is compared with, instead of the policy's ``baseline.path``."""
    cwd: Path


def add(parser: pytest.Parser) -> None:
    """Declare the options and the ini value."""
    group = parser.getgroup("sla", "latency SLA of a language model")
    group.addoption(
        "--sla",
        metavar="PATH",
        default=None,
        help="gate this sla.yaml: one test per limit (the same as naming the file)",
    )
    group.addoption(
        "--sla-report",
        metavar="DIR",
        default=None,
        help="folder of the reports; each run gets a new folder in it (default: .llmsla)",
    )
    group.addoption(
        "--sla-preset",
        choices=PRESETS,
        default=None,
        help="how sure a verdict must be, instead of the policy's evidence.preset",
    )
    group.addoption(
        "--sla-signoff",
        action="store_true",
        default=False,
        help="this run signs a release off: anything not measured, for whatever reason, is red",
    )
    group.addoption(
        "--sla-inconclusive",
        choices=("fail", "warn"),
        default="fail",
        help="warn: a local run that could not decide exits 0, loudly (not in CI or --sla-signoff)",
    )
    group.addoption(
        "--sla-resume",
        metavar="DIR",
        default=None,
        help="continue this run (a run folder, or a report folder's latest run) that was ended or "
        "killed: its requests count, under the same policy, machine and model",
    )
    group.addoption(
        "--sla-baseline",
        metavar="PATH",
        default=None,
        help="compare the run with the stored ones here (a folder of runs, a run folder or a "
        "timelines.jsonl); slower than baseline.tolerance allows is red",
    )
    parser.addini(
        "sla_policy",
        "sla.yaml that gives @sla tests their target, buckets and limits (not collected itself)",
        default="",
    )


def read(config: pytest.Config) -> Options:
    """Read and check every option.

    Raises:
        pytest.UsageError: an option that contradicts another, or that this version lacks.
    """
    get, cwd = config.getoption, config.invocation_params.dir
    baseline = get("--sla-baseline")
    if baseline is not None and not _absolute(cwd, str(baseline)).exists():
        raise pytest.UsageError(
            f"--sla-baseline {baseline}: does not exist; give a folder of runs such as .llmsla, a "
            "run folder, or a timelines.jsonl."
        )
    inconclusive = cast('Literal["fail", "warn"]', get("--sla-inconclusive"))
    signoff = bool(get("--sla-signoff"))
    if inconclusive == "warn" and (signoff or os.environ.get("CI")):
        why = "--sla-signoff" if signoff else f"the environment's CI={os.environ['CI']}"
        raise pytest.UsageError(
            f"--sla-inconclusive=warn cannot be used with {why}: a gate may not pass undecided. "
            "Leave the option out, or use it in a local run."
        )
    policy, by_option = _policy(config, cwd)
    ini = config.getini("sla_policy")
    base = config.inipath.parent if config.inipath else config.rootpath
    report_dir, resume = get("--sla-report"), get("--sla-resume")
    return Options(
        policy=policy,
        by_option=by_option,
        default_policy=_absolute(base, str(ini)) if ini else None,
        report_dir=_absolute(cwd, str(report_dir)) if report_dir else None,
        preset=get("--sla-preset"),
        signoff=signoff,
        inconclusive=inconclusive,
        resume=_absolute(cwd, str(resume)) if resume is not None else None,
        baseline=_absolute(cwd, str(baseline)) if baseline is not None else None,
        cwd=cwd,
    )


def _absolute(base: Path, path: str) -> Path:
    return Path(os.path.abspath(base / Path(path).expanduser()))


def _policy(config: pytest.Config, cwd: Path) -> tuple[Path | None, bool]:
    option = config.getoption("--sla")
    found: dict[Path, str] = {}
    if option is not None:
        if not str(option).strip():
            raise pytest.UsageError("--sla: got an empty path; give the path of an sla.yaml.")
        path = _absolute(cwd, str(option))
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise pytest.UsageError(f"--sla {option}: {what}; give the path of an sla.yaml.")
        found[path] = f"--sla {option}"
    for path in named_policies(config, cwd):
        found.setdefault(path, str(path))
    if len(found) > 1:
        raise pytest.UsageError(
            "two SLA policies in one run: "
            + ", ".join(os.path.relpath(p, cwd) for p in found)
            + ". One run measures one service, so that nothing competes for the machine: "
            "run them one after the other."
        )
    for path in found:
        return path, option is not None
    return None, False


def named_policies(config: pytest.Config, cwd: Path) -> list[Path]:
    """Policies among the command line's own arguments, in order, each once.

    testpaths and the invocation folder do not count: a bare ``pytest`` never starts a gate.
    """
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return []
    found: dict[Path, None] = {}
    for arg in config.args:
        name = str(arg).split("::", 1)[0]
        if name.lower().endswith(SUFFIXES):
            path = _absolute(cwd, name)
            if path.is_file() and looks_like_policy(path):
                found[path] = None
    return list(found)


def looks_like_policy(path: Path) -> bool:
    """True for ``sla*.yaml``/``*.sla.yaml`` and for YAML with ``version`` and buckets or target."""
    name = path.name.lower()
    if name.startswith("sla") or name.rsplit(".", 1)[0].endswith(".sla"):
        return True
    try:
        raw = path.read_bytes()
    except OSError:
        return False
    # NULs out: an ASCII key survives in UTF-16, whose proper refusal names the encoding.
    text = raw.replace(b"\0", b"").decode("latin-1")
    keys = (_KEY.format("version"), _KEY.format("(?:buckets|target)"))
    return all(re.search(key, text) for key in keys)
