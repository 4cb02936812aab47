"""What a server echoes beside its answers is scrubbed too."""

from __future__ import annotations

import traceback

import pytest

from pytest_llmsla.errors import TargetError
from pytest_llmsla.targets.http.choose import dialect_of
from pytest_llmsla.targets.http.prompt_counts import Lengths
from pytest_llmsla.targets.http.spec import HttpSpec
from pytest_llmsla.targets.http.target import HttpTarget
from pytest_llmsla.wire.secret import Scrubber, Secret

KEY = "sk-hidden-0123456789"


def refuses(prompt: str, system: str | None) -> int:
    raise TargetError(f"/tokenize: HTTP 401 (bad key {KEY})")


def test_a_key_echoed_by_a_counting_route_is_in_no_message_and_no_traceback() -> None:
    """Prompts are counted all through a run, and what fails there is told and logged."""
    lengths = Lengths("server", refuses, chat=False)
    lengths.scrub = Scrubber([Secret(KEY)]).scrub
    with pytest.raises(TargetError, match=r"bad key \*\*\*") as found:
        lengths.count("a prompt")
    assert KEY not in "".join(traceback.format_exception(found.value))


def test_a_model_named_after_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is picked from what the server lists."""
    monkeypatch.setenv("MY_KEY", KEY)
    spec = HttpSpec.from_mapping(
        {
            "kind": "openai",
            "base_url": "http://127.0.0.1:9/v1",
            "api_key_env": "MY_KEY",
            "model": f"m-{KEY}",
        }
    )
    target = HttpTarget(spec, dialect_of(spec))
    assert target.describe()["model"] == "m-***"
    target.close()
