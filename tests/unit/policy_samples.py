"""A short valid sla.yaml and ways to load variants of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmsla.errors import UsageError
from pytest_llmsla.policy import LoadedPolicy, load_policy

SHORT = """\
version: 1
service: llama2-7b-chat-4bit
target: {kind: transformers, model: smollm2-135m-instruct, dtype: bfloat16}
buckets:
  - {name: short,  prompt_max: 128, ttft_ms: 300}
  - {name: medium, prompt_max: 512, ttft_ms: 450}
  - {name: long,   measured_to: 1024, ttft_ms: 800}
itl: {p95_ms: 50}
tgs: {concurrency: [1]}
"""


def load(folder: Path, text: str | bytes, **kwargs: object) -> LoadedPolicy:
    """Write ``text`` as sla.yaml and load it."""
    path = folder / "sla.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_policy(path, **kwargs)  # type: ignore[arg-type]


def refusal(folder: Path, text: str | bytes, **kwargs: object) -> str:
    """The message ``text`` is refused with, the folder's name taken out."""
    with pytest.raises(UsageError) as caught:
        load(folder, text, **kwargs)
    return str(caught.value).replace(f"{folder}/", "")


HTTP = """\
version: 1
target:
  kind: openai
  base_url: http://127.0.0.1:8000/v1
buckets: [{name: short, prompt_max: 128, ttft_ms: 300}]
"""


def http(*keys: str, kind: str = "openai") -> str:
    """A policy of a server with further lines under ``target``."""
    text = HTTP.replace("openai", kind)
    return text.replace("buckets:", "".join(f"  {line}\n" for line in keys) + "buckets:")
