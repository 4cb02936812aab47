"""A tokenizer beside the test: ``tokenizer.json`` and its chat template, without transformers.

Renders a chat as transformers does: the same Jinja settings in a sandbox, the special tokens of
``tokenizer_config.json`` as variables. Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import TargetError, UsageError

_INSTALL = "pip install 'pytest-llmsla[tokenizer]'"
_SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class LocalTokenizer:
    """Counts without a server.

    Attributes:
        path: what was given as ``target.tokenizer``.
        template: the compiled chat template, None where the folder holds none.
        specials: ``bos_token`` and its like, as the template sees them.
    """

    path: str
    tokenizer: Any
    template: Any
    specials: Mapping[str, str]

    @classmethod
    def load(cls, path: str) -> LocalTokenizer:
        """Read a folder with ``tokenizer.json``, or such a file.

        Raises:
            UsageError: it cannot be read, or a package is missing.
        """
        given = Path(path).expanduser()
        file = given / "tokenizer.json" if given.is_dir() else given
        if not file.is_file():
            raise UsageError(
                f"target.tokenizer is {path!r}, and {file} does not exist; valid: a folder with "
                "tokenizer.json (and tokenizer_config.json, chat_template.jinja), or a "
                "tokenizer.json. Nothing is downloaded: copy these small files from the "
                "model's page."
            )
        config = _config(file.parent / "tokenizer_config.json")
        return cls(path, _tokenizer(file), _template(file.parent, config), _specials(config))

    def ids(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``; ``special``: with those that the tokenizer puts around every text."""
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def render(self, prompt: str, system: str | None) -> str:
        """The chat as the model reads it, the opening of its answer included.

        Raises:
            TargetError: there is no chat template, or it refuses these roles.
        """
        if self.template is None:
            raise TargetError(f"{self.path} holds no chat template")
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        try:
            return str(
                self.template.render(
                    messages=messages,
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self.specials,
                )
            )
        except Exception as e:  # a template fails in ways of its own
            raise TargetError(
                f"the chat template of {self.path} failed: {type(e).__name__}: {str(e)[:200]}"
            ) from None

    def chat(self, prompt: str, system: str | None) -> int:
        """Tokens of a chat: the template brings its special tokens itself."""
        return len(self.ids(self.render(prompt, system)))

    def raw(self, prompt: str, system: str | None) -> int:
        """Tokens of a text sent as it is, with those that servers put before it."""
        return len(self.ids(prompt, special=True))

    def bare(self, prompt: str, system: str | None) -> int:
        """Tokens of the text alone."""
        return len(self.ids(prompt))


def _tokenizer(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            f"target.tokenizer needs the package tokenizers, which is not installed: {_INSTALL}"
        ) from None
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as e:  # the library raises a bare Exception
        raise UsageError(
            f"{file} cannot be read as a tokenizer: {str(e)[:200]}; give the tokenizer.json of the "
            "served model (a sentencepiece .model or a .gguf is none)"
        ) from None
    # Files are saved with whatever their last training used; a prompt is never cut or filled.
    made.no_truncation()
    made.no_padding()
    return made


def _config(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{file} cannot be read: {str(e)[:200]}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} holds no JSON object; give the file of the served model")
    return config


def _specials(config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _SPECIALS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> Any:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _compiled(file.read_text("utf-8"), str(file))
    given = config.get("chat_template")
    if isinstance(given, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in given if isinstance(t, dict)}
        given = named.get("default")
    if not isinstance(given, str):
        return None
    return _compiled(given, str(folder / "tokenizer_config.json"))


def _compiled(source: str, where: str) -> Any:
    """The template in a sandbox, with what chat templates expect to find.

    Raises:
        UsageError: no Jinja, or a template with a syntax error.
    """
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import Node
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise UsageError(
            f"target.tokenizer needs the package jinja2 for the chat template: {_INSTALL}"
        ) from None

    class Generation(Extension):
        """``{% generation %}`` marks the model's own words for training; here it is plain text."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = as_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return env.from_string(source)
    except jinja2.TemplateSyntaxError as e:
        raise UsageError(f"the chat template in {where} cannot be read: {e}") from None
