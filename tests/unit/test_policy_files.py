"""Files that ship: the schema for editors, the examples, the starter, the reference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from policy_samples import SHORT

from pytest_llmsla.policy import load_policy
from pytest_llmsla.policy.models import Policy
from pytest_llmsla.policy.schema import pydantic_version, schema_text, sla_schema

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pytest_llmsla"
SHIPPED = [
    ROOT / "examples" / "laptop" / "sla.yaml",
    ROOT / "examples" / "published" / "sla.yaml",
    PACKAGE / "starter" / "sla.yaml",
]


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(sla_schema())


def test_the_committed_schema_is_current() -> None:
    """Editors see what the loader accepts. To renew: python -m pytest_llmsla.policy.schema."""
    committed = (PACKAGE / "schemas" / "sla.schema.json").read_text(encoding="utf-8")
    made_with = json.loads(committed)["$comment"].split()[-1]
    if made_with != pydantic_version():
        pytest.skip(f"the committed schema is made with pydantic {made_with}")
    assert committed == schema_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(committed))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: "/".join(p.parts[-2:]))
def test_shipped_policies_load_and_suit_the_schema(
    path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    """What people copy first is right, for the loader and for their editor."""
    assert load_policy(path).policy.version == 1
    schema.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_published_example_and_the_starter_hold_the_published_rules() -> None:
    """No example softens a published limit; the laptop one says that it does."""
    for path in SHIPPED[1:]:
        p = load_policy(path).policy
        limits = [(b.prompt_max, b.measured_to, b.ttft_ms) for b in p.buckets]
        assert limits == [(128, None, 300), (512, None, 450), (None, 1024, 800)]
        assert p.itl.p95_ms == 50
    laptop = load_policy(SHIPPED[0]).policy
    assert [b.prompt_max for b in laptop.buckets] == [128, 512, None]
    assert "LAPTOP LIMITS" in SHIPPED[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 2"),
        ("ttft_ms: 300", "ttft_ms: true"),
        ("ttft_ms: 300", "ttft_ms: 0"),
        (", ttft_ms: 300", ""),
        ("kind: transformers", "kind: openai"),
        ("p95_ms: 50", "p59_ms: 50"),
        ("model: smollm2-135m-instruct, ", ""),
        ("name: short", "name: 'a b'"),
        ("prompt_max: 128", "prompt_max: 128, prompt_min: 1"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    schema: jsonschema.Draft202012Validator, old: str, new: str
) -> None:
    """An editor underlines the mistakes that one key alone shows."""
    schema.validate(yaml.safe_load(SHORT))
    assert not schema.is_valid(yaml.safe_load(SHORT.replace(old, new, 1)))


def _reference() -> str:
    return (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def _leaves(properties: dict[str, Any], defs: dict[str, Any], prefix: str) -> set[str]:
    found: set[str] = set()
    for name, node in properties.items():
        refs = [str(r).rsplit("/", 1)[1] for r in re.findall(r"'\$ref': '([^']+)'", str(node))]
        for ref in refs:
            inner = defs[ref]["properties"]
            found |= _leaves(inner, defs, f"{prefix}{name}.")
        if not refs:
            found.add(f"{prefix}{name}")
    return found


def test_the_reference_names_every_key() -> None:
    """No key exists that the documentation does not explain."""
    schema = sla_schema()
    keys = _leaves(schema["properties"], schema["$defs"], "")
    assert len(keys) > 70
    documented = set(re.findall(r"^\| `([\w.]+)`", _reference(), re.M))
    assert keys - documented == set()
    assert documented - keys == set()


def test_the_references_defaults_are_the_defaults(tmp_path: Path) -> None:
    """The reference's listing of every default loads, and says what leaving the keys out says."""
    blocks = re.findall(r"```yaml\n(.*?)```", _reference(), re.S)
    full = next(b for b in blocks if "every key" in b.splitlines()[0])
    path = tmp_path / "sla.yaml"
    path.write_text(full, encoding="utf-8")
    policy = load_policy(path).policy
    bare = Policy.model_validate(
        {
            "version": 1,
            "target": {"kind": "transformers", "model": "smollm2-135m-instruct"},
            "buckets": [b.model_dump() for b in policy.buckets],
        }
    )
    assert policy.model_copy(update={"service": bare.service}) == bare
    written = set(load_policy(path).lines)
    schema = sla_schema()
    keys = _leaves(schema["properties"], schema["$defs"], "")
    for key in keys:
        if not key.startswith(("target.", "buckets.")):
            assert key in written, key


def test_every_other_yaml_block_of_the_reference_loads(tmp_path: Path) -> None:
    """Examples in the documentation are files that work."""
    for i, block in enumerate(re.findall(r"```yaml\n(.*?)```", _reference(), re.S)):
        path = tmp_path / f"sla{i}.yaml"
        path.write_text(block, encoding="utf-8")
        assert load_policy(path).policy.buckets
