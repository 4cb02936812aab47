"""GPU tests: skipped with the reason where torch finds no CUDA device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session", autouse=True)
def cuda() -> Any:
    """torch with a CUDA device."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    return torch


@pytest.fixture(scope="session")
def checkpoint(cuda: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer LLaMA with its tokenizer, saved as any other checkpoint."""
    from random_model import save

    folder = tmp_path_factory.mktemp("two-layers")
    save(folder, device="cuda:0", tiny=True)
    return folder
