"""``llmsla init``: put the starter into a folder, overwriting nothing."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from ..errors import UsageError
from ..policy import PUBLISHED_RULES, policy_from_mapping

_SETTINGS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_TARGET = re.compile(r"^target:.*?\n(?=\n)", re.M | re.S)
_SERVER = """\
target:                             # what is gated: a running server
  kind: {kind}
  base_url: {url}
  # model: NAME                     # needed where the server has several
  # api_key_env: MY_API_KEY         # the name of a variable; the key itself is never written here
  # tokenizer: FOLDER               # counts prompts where the server has no /tokenize
  # memory_gib: 21.8                # rule 3, for a server on another host: its memory,
  # memory_source: nvidia-smi on it # and where that figure comes from
"""


def init(folder: Path, server: str | None = None, kind: str | None = None) -> list[Path]:
    """Copy the starter files into ``folder`` (made when missing); returns what was written.

    All or nothing: when one of them is there already, none is written.

    Args:
        folder: where to put them.
        server: address of a running server to gate; None: the embedded model.
        kind: how that server is asked; None: ``openai``.

    Raises:
        UsageError: a file of that name exists, the folder cannot be written, or the address or
            the kind is none.
    """
    if kind is not None and server is None:
        raise UsageError("--kind says how a server is asked: give its address too, --server URL")
    target = None if server is None else _server(server, kind or "openai")
    starter = [
        f
        for f in (files("pytest_llmsla") / "starter").iterdir()
        if _belongs(f.name) and not (f.name == _SETTINGS[0] and has_settings(folder))
    ]
    there = [folder / f.name for f in starter if (folder / f.name).exists()]
    if there:
        raise UsageError(
            f"{', '.join(map(str, there))}: exists already and is never overwritten. "
            "Give another folder, or move it away"
        )
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(starter, key=lambda f: f.name):
            path = folder / source.name
            text = source.read_text(encoding="utf-8")
            if target is not None and path.suffix == ".yaml":
                text = _TARGET.sub(lambda _: target, text, count=1)
            # "x" refuses a file that appeared since the look above.
            with path.open("x", encoding="utf-8", newline="\n") as out:
                out.write(text)
            written.append(path)
    except OSError as e:
        raise UsageError(
            f"{folder}: cannot be written ({e.strerror or e}). Give a folder you may write"
        ) from e
    return written


def has_settings(folder: Path) -> bool:
    """True where pytest has a file of settings already: it must name the policy itself."""
    return any((folder / name).exists() for name in _SETTINGS)


def _server(url: str, kind: str) -> str:
    """The ``target`` block of a server.

    Raises:
        UsageError: the policy would be refused; the address is not repeated.
    """
    mapping = {**PUBLISHED_RULES, "target": {"kind": kind, "base_url": url}}
    policy_from_mapping(mapping, "--server and --kind")
    return _SERVER.format(kind=kind, url=json.dumps(url, ensure_ascii=False))


def _belongs(name: str) -> bool:
    return not name.startswith(("__", ".")) and Path(name).suffix in (".yaml", ".py", ".ini")
