"""Rules for the keys of HTTP targets. No message repeats a value that could be a credential."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .credentials import secret_header, secret_key, secret_name, secret_value
from .http_models import HTTP_KINDS, URL
from .problems import Path, Problem, dig, whole

_SCHEMES = ("http", "https", "http+unix")
_FROM_ENVIRONMENT = (
    "put it in an environment variable and name that: target.api_key_env for a Bearer token, or "
    'target.headers: {NAME: "${VARIABLE}"}'
)
_VARIABLE = re.compile(r"\$\{[^}]*\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_FRAMING = "the client frames its requests itself"
_CONNECTION = "the client keeps its connections itself"
_OWNED: Mapping[str, str] = {
    "host": "it follows from base_url",
    "content-length": _FRAMING,
    "transfer-encoding": _FRAMING,
    "te": _FRAMING,
    "trailer": _FRAMING,
    "expect": _FRAMING,
    "connection": _CONNECTION,
    "keep-alive": _CONNECTION,
    "upgrade": _CONNECTION,
    "proxy-connection": _CONNECTION,
    "proxy-authorization": "it follows from proxy: http://${USER}:${PASSWORD}@host:port",
    "accept-encoding": "it is identity: compressed, tokens would wait for each other",
    "content-type": "it is application/json",
    "accept": "it is text/event-stream, or the JSON of a question before the run",
}
_ROUTES = (
    "/chat/completions",
    "/completions",
    "/completion",
    "/generate_stream",
    "/generate",
)
_SENT_BY_US: Mapping[str, str] = {
    "model": "target.model",
    **dict.fromkeys(("messages", "prompt", "prompts", "inputs"), "workload.prompts"),
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_output_tokens", "n_predict"),
        "workload.max_new_tokens",
    ),
}
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "do_sample",
)
# A value that says "do nothing" can be left out where the API lacks the key.
_OFF: Mapping[str, float] = {
    "min_p": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}
# What of workload.sampling an API has no parameter for.
_NO_PARAMETER: Mapping[str, tuple[str, ...]] = {
    "tgi": ("min_p", "presence_penalty"),
    "mii": ("min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
}


def http_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything wrong with an HTTP target; nothing for other kinds."""
    target = raw.get("target")
    if not isinstance(target, Mapping) or target.get("kind") not in HTTP_KINDS:
        return
    for name in ("base_url", "metrics_url"):
        url = target.get(name)
        if isinstance(url, str):
            text = _secret_in(url) or ("${" not in url and _url_problem(url))
            if text:
                yield Problem(("target", name), text)
    yield from _proxy_problems(target)
    yield from _header_problems(target)
    yield from _api_key_problems(target)
    yield from _body_problems(target, raw)
    yield from _sampling_problems(target, raw)
    if (target.get("memory_gib") is None) != (target.get("memory_source") is None):
        there, missing = "memory_gib", "memory_source"
        if target.get("memory_gib") is None:
            there, missing = missing, there
        yield Problem(
            ("target", there),
            f"needs {missing}: a declared figure and where it comes from go together",
        )


def _secret_in(url: str) -> str | None:
    """Why an address may not be printed. Like all of these, without the address itself."""
    # Anywhere before the query: a password may hold a slash that nobody escaped.
    if "@" in url.partition("?")[0]:
        return (
            "holds a user name or a password, which would be printed: take it out and "
            f"{_FROM_ENVIRONMENT}"
        )
    query = url.partition("?")[2]
    for name, value in parse_qsl(query, keep_blank_values=True):
        if secret_key(name) or name.lower() == "code" or secret_value(value):
            return (
                "holds a query parameter that looks like a credential and would be printed: take "
                f"it out and {_FROM_ENVIRONMENT}"
            )
    return None


def _url_problem(url: str) -> str | None:
    """What is wrong with the shape of an address."""
    if any(c.isspace() or not c.isprintable() for c in url):
        return "holds a space, a line end or a control character: remove it"
    if "://" not in url:
        return f"begins with neither http:// nor https://; valid: {URL}"
    try:
        split = urlsplit(url)
        no_port = split.port == 0
    except ValueError:
        return f"is no address: check its host and port; valid: {URL}"
    if split.scheme not in _SCHEMES:
        return f"begins with another word than http, https or http+unix; valid: {URL}"
    if not split.hostname or no_port:
        return f"names no host, or port 0; valid: {URL}"
    if split.scheme == "http+unix" and not split.netloc.upper().startswith("%2F"):
        return (
            "a Unix socket needs its whole path, with %2F for each slash: "
            "http+unix://%2Frun%2Fserver.sock/v1"
        )
    if "#" in url:
        return "holds a part from # on, which no server gets: remove it"
    ending = next((r for r in _ROUTES if split.path.rstrip("/").endswith(r)), None)
    if ending is not None:
        return f"ends with {ending}, a route that the client adds itself: end before it"
    return None


def _proxy_problems(target: Mapping[str, Any]) -> Iterator[Problem]:
    proxy = target.get("proxy")
    if not isinstance(proxy, str):
        return
    at: Path = ("target", "proxy")
    user, at_sign, _ = proxy.rpartition("@")
    if at_sign and re.sub(r"[:/]|http:", "", _VARIABLE.sub("", user)):
        yield Problem(
            at,
            "holds a user name or a password, which may not be written in the file. Write "
            "http://${USER}:${PASSWORD}@host:port, or ${NAME} for the whole address",
        )
    elif "${" not in proxy and not re.match(r"http://[^/?#\s:]+(:\d{1,5})?/?\Z", proxy):
        yield Problem(
            at, "is no address of a proxy; valid: http://host:port, without a path, or ${NAME}"
        )
    base = target.get("base_url")
    if isinstance(base, str) and base.startswith("http+unix:"):
        yield Problem(at, "a Unix socket is reached without a proxy: remove it")


def _header_problems(target: Mapping[str, Any]) -> Iterator[Problem]:
    headers = target.get("headers")
    if not isinstance(headers, Mapping):
        return
    seen: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.match(name):
            yield Problem(
                ("target", "headers"),
                "holds something that is no name of a header: letters, digits and - only; write "
                '{X-Tenant: "blue"}',
            )
            continue
        at: Path = ("target", "headers", name)
        lower = name.lower()
        if lower in _OWNED:
            yield Problem(at, f"may not be set: {_OWNED[lower]}. Remove it")
        elif lower in seen:
            yield Problem(at, f"given twice ({seen[lower]}); upper and lower case are one")
        elif isinstance(value, str):
            text = _value_problem(name, value)
            if text is not None:
                yield Problem(at, text)
        seen.setdefault(lower, name)
        if lower == "authorization" and any(
            target.get(k) is not None for k in ("api_key_env", "api_key_file")
        ):
            yield Problem(at, "the API key is sent in this header already: remove one")


def _value_problem(name: str, value: str) -> str | None:
    """What is wrong with the value of a header."""
    if any(not (c == "\t" or " " <= c <= "~") for c in value):
        return "its value holds a line end, a control character or a letter that is no ASCII"
    if (secret_header(name) and not _only_variables(value)) or secret_value(value):
        example = "Bearer ${NAME}" if name.lower() == "authorization" else "${NAME}"
        return (
            "a credential may not be written in the file: put it in an environment variable and "
            f'write {name}: "{example}"'
        )
    return None


def _only_variables(value: str) -> bool:
    """True when nothing but ``${NAME}`` and words such as Bearer or session= are there."""
    if "${" not in value:
        return False
    words = re.findall(r"[^\s:;,=&]+", _VARIABLE.sub(" ", value))
    return all(len(w) <= 16 and re.fullmatch(r"[A-Za-z_-]+", w) for w in words)


def _api_key_problems(target: Mapping[str, Any]) -> Iterator[Problem]:
    name = target.get("api_key_env")
    if isinstance(name, str):
        at: Path = ("target", "api_key_env")
        if name.startswith("$"):
            yield Problem(at, "the name alone, without $ and braces: api_key_env: MY_API_KEY")
        elif not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name) or secret_name(name):
            yield Problem(
                at,
                "this is no name of an environment variable; it looks like the key itself. Put the "
                "key in a variable and write its name: api_key_env: MY_API_KEY",
            )
    path = target.get("api_key_file")
    if isinstance(path, str) and secret_value(path):
        yield Problem(
            ("target", "api_key_file"),
            "this looks like the key itself; valid: the path of a file that holds it",
        )
    if name is not None and path is not None:
        yield Problem(("target", "api_key_file"), "api_key_env is given too: remove one")


def _body_problems(target: Mapping[str, Any], raw: Mapping[str, Any]) -> Iterator[Problem]:
    body = target.get("extra_body")
    if not isinstance(body, Mapping):
        return
    at: Path = ("target", "extra_body")
    asked = whole(dig(raw, "workload", "max_new_tokens", default=64))
    for name, value in body.items():
        if name in _SENT_BY_US:
            yield Problem((*at, name), f"set by {_SENT_BY_US[name]}: use that, and remove it here")
        elif name == "stream" and value is not True:
            yield Problem((*at, name), "without a stream no token can be timed: remove it")
        elif name in ("n", "best_of") and value != 1:
            yield Problem((*at, name), "a request is one answer: remove it")
        elif name == "max_completion_tokens" and whole(value) != asked:
            yield Problem(
                (*at, name),
                f"must be the value of workload.max_new_tokens, {asked}: it only says which key "
                "the server wants",
            )
    for where, keys in ((at, body), ((*at, "parameters"), body.get("parameters"))):
        for name in _SAMPLING:
            if dig(keys, name) is not None:
                yield Problem(
                    (*where, name),
                    "set by workload.sampling, so that the report shows what was sent: use that "
                    "(null here leaves the key out of the request)",
                )
    for path in _secrets_in(body, at):
        yield Problem(
            path,
            "a credential may not be sent in the body, which is printed: put it in an environment "
            f"variable and send it as a header: target.headers: {{NAME: {_quoted('${VARIABLE}')}}}",
        )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _secrets_in(value: Any, path: Path) -> Iterator[Path]:
    """Where in a body something looks like a credential, by its key or by its shape."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            scalar = isinstance(inner, (str, int, float)) and not isinstance(inner, bool)
            if scalar and secret_key(str(name)):
                yield (*path, str(name))
            else:
                yield from _secrets_in(inner, (*path, str(name)))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _secrets_in(inner, (*path, i))
    elif isinstance(value, str) and secret_value(value):
        yield path


def _sampling_problems(target: Mapping[str, Any], raw: Mapping[str, Any]) -> Iterator[Problem]:
    kind = str(target.get("kind"))
    sampling = dig(raw, "workload", "sampling")
    if dig(sampling, "greedy") is True:
        return
    for name in _NO_PARAMETER.get(kind, ()):
        if dig(sampling, name) not in (None, _OFF[name]):
            yield Problem(
                ("workload", "sampling", name),
                f"the API of {kind} has no such parameter: remove it",
            )
