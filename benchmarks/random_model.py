"""A LLaMA with random weights and a tokenizer, made offline and saved to a folder.

By default in the shape of LLaMA-2-7B; ``tiny`` is two small layers. The weights are made on the
device and saved as safetensors, so that a gate loads them as it loads any checkpoint. Times do not
depend on the weights' values; texts are noise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

VOCABULARY = 32_000
SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def tokenizer(size: int = VOCABULARY) -> Any:
    """A byte-level BPE trained on the package's own prompt texts, filled up to ``size`` ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_texts(), trainer)
    state = json.loads(made.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    for i in range(len(vocabulary), size):
        vocabulary[f"<unused {i}>"] = i
    made = Tokenizer.from_str(json.dumps(state))
    made.decoder = decoders.ByteLevel()
    out = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[2],
    )
    out.chat_template = TEMPLATE
    return out


def _texts() -> Iterator[str]:
    folder = files("pytest_llmsla.workload") / "prompts"
    found = [f for f in folder.iterdir() if f.name.endswith(".txt")]
    if not found:
        raise SystemExit(f"no prompt texts in {folder}: the tokenizer would know bytes only")
    for file in sorted(found, key=lambda f: f.name):
        yield from file.read_text(encoding="utf-8").splitlines()


def save(
    folder: Path,
    *,
    device: str,
    tiny: bool = False,
    dtype: str = "bfloat16",
    vocabulary: int = VOCABULARY,
) -> int:
    """Make and save model and tokenizer; returns the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer(vocabulary).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        **(TINY if tiny else SHAPE),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.generation_config.pad_token_id = 2
    model.save_pretrained(folder, max_shard_size="4GB")
    return sum(p.numel() for p in model.parameters())


def main() -> int:
    """Make the model and print what it took as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    args.to.mkdir(parents=True, exist_ok=True)
    parameters = save(args.to, device=args.device, tiny=args.tiny)
    size = sum(f.stat().st_size for f in args.to.glob("*.safetensors"))
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"parameters": parameters, "bytes": size, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
