"""The ``target`` mapping of sla.yaml as the HTTP targets read it: secrets resolved, never shown.

Credentials come from the environment or a file, are looked up here and nowhere else, and are kept
as :class:`Secret`. No function here keeps one in a variable as text: a traceback shows variables.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...errors import UsageError
from ...wire.address import Address
from ...wire.secret import Scrubber, Secret

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MAX_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """Options of an HTTP target, everything resolved. Names and meanings as in sla.yaml."""

    kind: str
    address: Address
    model: str | None = None
    api: str | None = None
    """``chat`` or ``completions`` (openai), ``openai`` or ``rest`` (mii), None for the others."""
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    """Sent with every request, the API key as ``Authorization`` among them."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    verify: bool | str = True
    """True (the system's CAs), False, or the path of a CA file."""
    proxy: str | Secret | None = None
    connect_in_ttft: bool = False
    metrics: Address | None = None
    """Where metrics are; None: ``/metrics`` of the server's root."""
    retries: int = 0
    connect_s: float = 10.0
    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 300.0
    memory_gib: float | None = None
    memory_source: str | None = None
    tokenizer: str | None = None
    scrubber: Scrubber = field(default_factory=Scrubber)
    """Takes every secret of this target out of texts that come from outside."""

    @classmethod
    def from_mapping(cls, spec: Mapping[str, Any]) -> HttpSpec:
        """Read the ``target`` mapping; relative paths start at the working directory.

        Raises:
            UsageError: an address that is none, a variable that is not set, a file that cannot be
                read, a key that cannot be sent. No message holds a secret.
        """
        url = spec.get("base_url")
        if not isinstance(url, str) or not url:
            raise UsageError(
                "target.base_url is missing. Give the address of the server, such as "
                "http://127.0.0.1:8000/v1."
            )
        headers = {name: _resolved(v, f"headers.{name}") for name, v in _headers(spec)}
        key = _api_key(spec)
        if key is not None:
            headers["Authorization"] = Secret(f"Bearer {key.reveal()}")
        proxy = spec.get("proxy")
        resolved_proxy = None if proxy is None else _resolved(str(proxy), "proxy")
        _refuse_unsendable(headers)
        _refuse_unusable(resolved_proxy)
        metrics = spec.get("metrics_url")
        return cls(
            kind=str(spec.get("kind")),
            address=Address.parse(url, "target.base_url"),
            model=spec.get("model"),
            api=spec.get("api"),
            headers=headers,
            extra_body=dict(spec.get("extra_body") or {}),
            verify=spec.get("verify_tls", True),
            proxy=resolved_proxy,
            connect_in_ttft=bool(spec.get("connect_in_ttft", False)),
            metrics=None if metrics is None else Address.parse(metrics, "target.metrics_url"),
            retries=int(spec.get("retries", 0)),
            **{name: float(s) for name, s in dict(spec.get("timeouts") or {}).items()},
            memory_gib=spec.get("memory_gib"),
            memory_source=spec.get("memory_source"),
            tokenizer=spec.get("tokenizer"),
            scrubber=Scrubber(_longest_first(_secrets(spec, key, resolved_proxy))),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a report must say about how the server is asked."""
        out = []
        near = self.address.unix is not None or self.address.host in _LOCAL
        if self.verify is False and self.address.tls:
            out.append("verify_tls: false: whoever answers is taken for the server")
        if not (self.address.tls or near) and any(
            isinstance(value, Secret) for value in self.headers.values()
        ):
            out.append("credentials are sent without TLS: base_url is http://")
        return tuple(out)


def _headers(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in dict(spec.get("headers") or {}).items():
        yield str(name), str(value)


def _resolved(text: str, where: str) -> str | Secret:
    """``text`` with ``${NAME}`` put in: then it is a secret, whatever it says."""
    if "${" not in text:
        return text
    for name in _VARIABLE.findall(text):
        if not os.environ.get(name):
            raise _unset(where, name)
    return Secret(_VARIABLE.sub(lambda m: os.environ[m[1]], text))


def _unset(where: str, name: str) -> UsageError:
    return UsageError(
        f"target.{where}: the environment variable {name} is not set (or empty). Set it."
    )


def _api_key(spec: Mapping[str, Any]) -> Secret | None:
    name, path = spec.get("api_key_env"), spec.get("api_key_file")
    if name is not None:
        if not os.environ.get(str(name), "").strip():
            raise _unset("api_key_env", str(name))
        where, key = f"api_key_env: the variable {name}", Secret(os.environ[str(name)].strip())
    elif path is not None:
        where, key = "api_key_file: the file", _from_file(Path(str(path)))
    else:
        return None
    if not key.reveal():
        raise UsageError(f"target.{where} is empty; it must hold the API key.")
    if not _sendable(key):
        raise UsageError(
            f"target.{where} holds several lines, a space, a control character or a letter that "
            "is no ASCII; valid: the API key alone."
        )
    return key


def _from_file(path: Path) -> Secret:
    """The file's text without the line end that editors add.

    Raises:
        UsageError: it cannot be read. The path may be the key itself, so it is not repeated.
    """
    try:
        if path.stat().st_size > _MAX_KEY_BYTES:
            raise UsageError(f"target.api_key_file holds more than {_MAX_KEY_BYTES} bytes.")
        return Secret(path.read_text(encoding="utf-8-sig").strip())
    except UnicodeDecodeError:
        raise UsageError(
            "target.api_key_file is no text. Give a file that holds the API key alone."
        ) from None
    except (OSError, ValueError) as e:
        reason = (e.strerror if isinstance(e, OSError) else None) or "no path"
        raise UsageError(
            f"target.api_key_file cannot be read ({reason}). The path starts at the policy's "
            "folder; it must name a file that holds the API key alone."
        ) from None


def _sendable(key: Secret) -> bool:
    return re.fullmatch(r"[!-~]+", key.reveal()) is not None


def _refuse_unsendable(headers: Mapping[str, str | Secret]) -> None:
    for name, value in headers.items():
        if re.fullmatch(r"[\t -~]*", value.reveal() if isinstance(value, Secret) else value):
            continue
        raise UsageError(
            f"target.headers.{name}: its value holds a line end, a control character or a letter "
            "that is no ASCII. Look at the variables in it."
        )


def _refuse_unusable(proxy: str | Secret | None) -> None:
    if proxy is not None and not _usable(proxy if isinstance(proxy, Secret) else Secret(proxy)):
        raise UsageError(
            "target.proxy is no address of a proxy; valid: http://host:port or "
            "http://user:password@host:port, without a path. Look at the variables in it."
        )


def _usable(proxy: Secret) -> bool:
    try:
        split = urlsplit(proxy.reveal())
        address = split.scheme == "http" and bool(split.hostname) and split.port != 0
    except ValueError:
        return False
    bare = split.path in ("", "/") and not split.query and not split.fragment
    return address and bare and _sendable(proxy)


def _secrets(
    spec: Mapping[str, Any], key: Secret | None, proxy: str | Secret | None
) -> Iterator[Secret]:
    """Everything that must not be seen, alone and in the forms it is sent in."""
    if key is not None:
        yield key
    for value in (*(v for _, v in _headers(spec)), str(spec.get("proxy") or "")):
        for name in _VARIABLE.findall(value):
            yield Secret(os.environ[name])
    if isinstance(proxy, Secret):
        yield proxy
        split = _Userinfo(proxy)
        if split.password is not None:
            yield from (split.password, split.basic)


class _Userinfo:
    """The password of a proxy, and how it is sent."""

    __slots__ = ("basic", "password")

    def __init__(self, proxy: Secret) -> None:
        self.password: Secret | None = None
        self.basic = Secret("")
        if urlsplit(proxy.reveal()).password is not None:
            self.password = Secret(unquote(urlsplit(proxy.reveal()).password or ""))
            user = unquote(urlsplit(proxy.reveal()).username or "")
            pair = Secret(f"{user}:{self.password.reveal()}")
            self.basic = Secret(b64encode(pair.reveal().encode()).decode("ascii"))


def _longest_first(secrets: Iterator[Secret]) -> list[Secret]:
    """So that one that holds another is taken out whole."""
    return sorted(set(secrets), key=lambda s: -len(s.reveal()))
