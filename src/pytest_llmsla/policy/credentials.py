"""What looks like a credential: so that none is written in a policy, and none is repeated."""

from __future__ import annotations

import re

from .problems import Path

HIDDEN = (
    "headers",
    "extra_body",
    "proxy",
    "api_key_env",
    "api_key_file",
    "base_url",
    "metrics_url",
)
"""Keys of ``target`` whose values no message repeats."""

_HEADER_PARTS = (
    "authorization",
    "apikey",
    "token",
    "secret",
    "cookie",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "signature",
    "bearer",
    "jwt",
)
_HEADER_WORDS = frozenset({"auth", "authn", "authz", "key", "pass", "pwd", "sig", "xauth"})
# Of a body or a query: max_tokens and stop_token_ids are no credentials there.
_KEY_WORDS = frozenset(
    {
        "authorization",
        "apikey",
        "auth",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "sig",
        "signature",
    }
)
_KEY_OF = frozenset(
    {"access", "account", "api", "auth", "client", "private", "secret", "subscription", "user"}
)
_TOKEN_OF = _KEY_OF | {"bearer", "hf", "hub", "id", "refresh", "security", "session"}
_VALUES = re.compile(
    r"(?i:\b(?:bearer|basic)\s+[\w.~+/=-]{4,})"
    r"|\b(?:sk|pk|rk|gsk|hf|ghp|gho|github_pat|glpat|nvapi|xai|xox[abp])[-_]"
    r"(?=[\w-]*\d)[\w-]{16,}"
    r"|\beyJ[\w-]{10,}"
    r"|\bAIza[\w-]{30,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
)


def hidden(path: Path) -> bool:
    """True for a key whose value may be a credential, even where it does not belong."""
    if path[:1] == ("target",) and len(path) > 1 and path[1] in HIDDEN:
        return True
    return any(isinstance(step, str) and secret_key(step) for step in path)


def secret_header(name: str) -> bool:
    """True for a header that by its name carries a credential."""
    words = _words(name)
    whole = "".join(words)
    named = any(part in whole for part in _HEADER_PARTS) or "authentic" in whole
    return named or not _HEADER_WORDS.isdisjoint(words)


def secret_key(name: str) -> bool:
    """True for a key of a body, or a query parameter, that by its name carries a credential."""
    words = _words(name)
    if not _KEY_WORDS.isdisjoint(words) or "apikey" in "".join(words):
        return True
    before = words[-2] if len(words) > 1 else None
    if words[-1:] == ["key"]:
        return before is None or before in _KEY_OF
    return words[-1:] == ["token"] and (before is None or before in _TOKEN_OF)


def secret_value(text: str) -> bool:
    """True for text in the well-known shape of a key, whatever it stands under."""
    return _VALUES.search(text) is not None


def secret_name(name: str) -> bool:
    """True for the "name of a variable" that is rather the key itself, put in the wrong place."""
    mixed = re.search(r"[a-z]", name) and re.search(r"\d", name)
    return secret_value(name) or bool(mixed and len(name) >= 20)


def _words(name: str) -> list[str]:
    """``X-Api-Key``, ``apiKey`` and ``api_key`` end as ``[…, "api", "key"]``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z0-9]+", spaced.lower())
