"""From a prompt to the ids that ``generate()`` sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_PROBE_SYSTEM = "llmsla-system-probe"


@dataclass(frozen=True, slots=True)
class PromptRenderer:
    """Renders prompts with the tokenizer's chat template, or as plain text where it has none."""

    tokenizer: Any
    chat: bool
    system_role: bool
    """The template has a system role; without one the system prompt goes before the user's."""

    @classmethod
    def of(cls, tokenizer: Any) -> PromptRenderer:
        """Look once at what the tokenizer's template can do."""
        chat = bool(getattr(tokenizer, "chat_template", None))
        made = cls(tokenizer, chat, system_role=True)
        return cls(tokenizer, chat, system_role=chat and made._keeps_system())

    def _keeps_system(self) -> bool:
        try:
            return _PROBE_SYSTEM in self.text("hello", _PROBE_SYSTEM)
        except Exception:  # a template refuses a role in its own way: any error means "no"
            return False

    def text(self, prompt: str, system: str | None = None) -> str:
        """The rendered prompt, with what opens the model's answer."""
        if system and not self.system_role:
            prompt = f"{system}\n\n{prompt}"
        if not self.chat:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        if system and self.system_role:
            messages.insert(0, {"role": "system", "content": system})
        return str(
            self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        )

    def ids(self, prompt: str, system: str | None = None) -> list[int]:
        """Ids of the rendered prompt.

        A template writes its own begin token, so none is added; plain text gets the tokenizer's.
        """
        encoded = self.tokenizer(self.text(prompt, system), add_special_tokens=not self.chat)
        return [int(i) for i in encoded["input_ids"]]

    def overhead(self) -> tuple[int, int] | None:
        """Tokens that the template puts before and after the user's text; None without template."""
        if not self.chat:
            return None
        mark = "hello"
        before, found, after = self.text(mark).rpartition(mark)
        if not found:
            return None
        return tuple(  # type: ignore[return-value]
            len(self.tokenizer(part, add_special_tokens=False)["input_ids"])
            for part in (before, after)
        )
