"""From the ``target`` mapping of sla.yaml to a loaded model and tokenizer.

Nothing a checkpoint brings is executed: safetensors or GGUF only, ``trust_remote_code`` off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from ..errors import TargetError, UsageError
from .hf_engine import compile_decode
from .hf_resolve import Source, resolve
from .hf_spec import HfSpec

Say = Callable[[str], None]

FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading gives: the parts, where they came from, and what was said meanwhile."""

    model: Any
    tokenizer: Any
    source: Source
    device: str
    library_warnings: tuple[str, ...]


def load(spec: HfSpec, *, say: Say) -> Loaded:
    """Load model and tokenizer on their device, in evaluation mode.

    Raises:
        UsageError: the policy asks for what this machine or these packages cannot do.
        TargetError: the checkpoint cannot be found, read or used.
    """
    device = pick_device(spec.device)
    quantization = quantization_config(spec)
    _check_attention(spec.attn)
    source = resolve(spec, say=say)
    if source.gguf_file is not None:
        require("gguf", "it reads GGUF files")
        if quantization is not None:
            raise UsageError(
                f"target.quantization: {spec.quantization} does not apply to a GGUF file "
                f"({source.gguf_file}): it holds its own. Use quantization: none, or a safetensors "
                "checkpoint."
            )
    _check_compile(spec, source)
    say(f"loading {spec.model} from {source.folder} on {device}")
    with _recorded() as said:
        tokenizer = _load_tokenizer(spec, source)
        model = _load_model(spec, source, device, quantization)
        if source.gguf_file is not None and source.tokenizer_folder is None:
            align_special_tokens(tokenizer, model.config.get_text_config())
        if spec.compile:
            compile_decode(model, str(spec.compile))
    return Loaded(model, tokenizer, source, device, tuple(said))


def pick_device(wanted: str) -> str:
    """``auto``, ``cpu``, ``mps``, or ``cuda:N`` as torch knows it here.

    ``auto`` stays ``auto`` where there are CUDA cards (layers may be spread over them).
    """
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return "auto" if cuda else "mps" if mps else "cpu"
    if wanted == "cpu" or (wanted == "mps" and mps):
        return wanted
    if wanted == "mps":
        raise UsageError("target.device: mps, but this torch sees none. Use cpu, cuda or auto.")
    index = int(wanted.partition(":")[2] or 0)
    if index >= cuda:
        raise UsageError(
            f"target.device: {wanted}, but torch {torch.__version__} sees {cuda} CUDA "
            f"device(s). Use cpu or auto, or check the driver and CUDA_VISIBLE_DEVICES."
        )
    return f"cuda:{index}"


def quantization_config(spec: HfSpec) -> Any | None:
    """The ``BitsAndBytesConfig`` that a policy asks for; None for ``quantization: none``."""
    if spec.quantization == "none":
        return None
    require("bitsandbytes", f"target.quantization: {spec.quantization} needs it")
    require("accelerate", f"target.quantization: {spec.quantization} needs it")
    if spec.quantization == "int8":
        # It logs one line a layer and token about a cast; describe() says it once instead.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    options: dict[str, Any] = {}
    if spec.compute_dtype is not None:
        options["bnb_4bit_compute_dtype"] = getattr(torch, spec.compute_dtype)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=spec.quantization,
        bnb_4bit_use_double_quant=spec.double_quant,
        **options,
    )


def gguf_arguments(file_name: str) -> dict[str, Any]:
    """``from_pretrained`` arguments that load a GGUF file dequantised, whatever the version.

    Newer versions keep the weights packed unless told otherwise, which is about ten times
    slower on a CPU; older ones know no such option and always expand.
    """
    config = getattr(transformers, "GgufConfig", None)
    expand = {} if config is None else {"quantization_config": config(dequantize=True)}
    return {"gguf_file": file_name, **expand}


def align_special_tokens(tokenizer: Any, config: Any) -> None:
    """Give a tokenizer made from a GGUF file the special tokens that the file states.

    Some versions of transformers name other tokens in the tokenizer than in the config they make
    from the same file (for SmolLM2, the opening of a turn as its end).
    """
    for name in ("bos", "eos", "pad"):
        token_id = getattr(config, f"{name}_token_id", None)
        if isinstance(token_id, int) and 0 <= token_id < len(tokenizer):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))


def require(package: str, why: str) -> None:
    """Check that an optional package can be imported.

    Raises:
        UsageError: it is not installed; the message says how to install it.
    """
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"the package {package} is not installed ({why}). Install it: "
            f"pip install {package}, or pip install 'pytest-llmsla[transformers]'"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice on the terminal while a library loads."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        # The GGUF reader draws its bar with a tqdm that no switch reaches.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


@contextlib.contextmanager
def _recorded() -> Iterator[list[str]]:
    """Quiet, with Python warnings kept for the report instead of ending the load (``-W error``)."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, quiet():
        warnings.simplefilter("always")
        yield said
    # A library's notes to its own developers say nothing about this model.
    internal = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    told = [w for w in caught if not issubclass(w.category, internal)]
    said.extend(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in told))


def _check_compile(spec: HfSpec, source: Source) -> None:
    """A checkpoint that is itself quantised is refused like a quantised target."""
    if not spec.compile or spec.compile_quantized or source.gguf_file is not None:
        return
    config = json.loads((source.folder / "config.json").read_text("utf-8"))
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unnamed method")
        raise UsageError(
            f"target.compile: {spec.compile} is refused: the checkpoint {spec.model} is quantised "
            f"({method}), and torch.compile runs quantised layers outside its graph. Use compile: "
            "false, or set compile_quantized: true to measure it all the same."
        )


def _check_attention(attn: str) -> None:
    package = FLASH_PACKAGES.get(attn)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"target.attn: {attn} needs the package {package}, which is not installed. "
            "Install it (pip install flash-attn), or use attn: sdpa."
        )


def _load_tokenizer(spec: HfSpec, source: Source) -> Any:
    options: dict[str, Any] = {"trust_remote_code": False}
    where = str(source.tokenizer_folder or source.folder)
    if source.tokenizer_folder is None and source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
    try:
        return transformers.AutoTokenizer.from_pretrained(where, **options)
    except Exception as e:
        raise TargetError(
            f"the tokenizer of {spec.model} cannot be loaded from {where}: "
            f"{type(e).__name__}: {e}. Name another with target.tokenizer."
        ) from e


def _load_model(spec: HfSpec, source: Source, device: str, quantization: Any | None) -> Any:
    options: dict[str, Any] = {
        "trust_remote_code": False,
        "dtype": spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype),
        "output_loading_info": True,
    }
    if source.gguf_file is not None:
        options |= gguf_arguments(source.gguf_file)
    else:
        options["use_safetensors"] = True
    if quantization is not None:
        options["quantization_config"] = quantization
    if spec.attn != "auto":
        options["attn_implementation"] = spec.attn
    placed = _placement(device, quantized=quantization is not None)
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            str(source.folder), **options, **placed
        )
        if not placed and device not in ("cpu", "auto"):
            model = model.to(device)
    except Exception as e:
        raise load_error(spec, source, e) from e
    missing = sorted(info["missing_keys"])
    if missing:
        raise TargetError(
            f"the checkpoint of {spec.model} lacks {len(missing)} weights ({missing[0]} …): they "
            "would run as random numbers. Save the checkpoint again, whole."
        )
    return model.eval()


def _placement(device: str, *, quantized: bool) -> dict[str, Any]:
    """The ``device_map`` argument; empty where plain loading on the CPU does the same."""
    if importlib.util.find_spec("accelerate") is None:
        return {}
    if device == "auto":
        return {"device_map": "auto"}
    if device == "cpu" and not quantized:
        return {}
    return {"device_map": {"": device}}


def load_error(spec: HfSpec, source: Source, e: Exception) -> Exception:
    """The message for a failed load: what was given, the cause, what to do."""
    text = str(e)
    what = f"{spec.model} cannot be loaded from {source.folder}"
    cause = f"{type(e).__name__}: {text}"
    if isinstance(e, ImportError):
        return UsageError(f"{what}: {cause}. Install the package it names, or change the option.")
    if "trust_remote_code" in text:
        return TargetError(
            f"{what}: its architecture is code inside the checkpoint, and downloaded code is never "
            "run here. Use an architecture that transformers knows, or gate it as kind: python."
        )
    if "`.to` is not supported" in text or "is not supported for `4-bit` or `8-bit`" in text:
        return TargetError(
            f"{what}: a quantised model cannot be moved to another device after loading. Name the "
            f"device in target.device. ({cause})"
        )
    if isinstance(e, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return TargetError(
            f"{what}: out of memory while loading. Use a smaller dtype, quantization: nf4, or a "
            f"larger device. ({cause})"
        )
    return TargetError(f"{what}: {cause}")
