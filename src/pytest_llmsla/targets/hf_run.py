"""One ``generate()`` call: watched, and every way it can go wrong told apart."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import LlmslaError, TargetError
from .base import Recorder
from .hf_logits import LogitWatch, logit_watch
from .hf_stream import StageMarks, TokenStreamer, stages

NS_PER_MS = 1_000_000


class _Silenced:
    """Keeps one warning from being said or raised while any thread is inside."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            # The filters are the process's: one thread's leaving must not undo another's.
            if self._inside == 1:
                self._filters.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message=self._message)

    def __exit__(self, *_exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.close()


CAST_WARNING = _Silenced("MatMul8bitLt: inputs will be cast")
"""Said at every int8 forward by older bitsandbytes; describe() warns of it once."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of ``generate()`` for one row."""

    input_ids: Any
    """Tensor (1, prompt length) on the model's device."""
    max_new_tokens: int
    eos: tuple[int, ...]
    arguments: dict[str, Any]
    """Everything else that goes to ``generate()``."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, tokens."""
        return int(self.input_ids.shape[-1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The generated ids of one call."""

    ids: list[int]
    late: bool
    """The first token was handed over only after the second forward had begun."""


def run(
    model: Any, call: Call, record: Recorder, ready_ns: int, new_events: Callable[[], Any] | None
) -> Outcome:
    """Generate, stamp every token, record the stages, and return the generated ids.

    ``ready_ns`` is when the ids were ready. ``new_events`` makes the device's step events.

    Raises:
        GenerationAborted: as the recorder raised it.
        TargetError: anything else, with the cause; the model can be asked again.
    """
    watch = logit_watch(call.input_ids.device.type, sampling=call.arguments["do_sample"])
    streamer = TokenStreamer(record, watch)
    events = None if new_events is None else new_events()
    marks = StageMarks(model, record.clock, events=events, watch=watch)
    failure: Exception | None = None
    returned: list[int] = []
    try:
        with current_device(call.input_ids.device), CAST_WARNING, marks:
            out = model.generate(
                input_ids=call.input_ids,
                max_new_tokens=call.max_new_tokens,
                streamer=streamer,
                **call.arguments,
            )
        returned = out[0, call.prompt_tokens :].tolist()
    except LlmslaError:
        raise
    except Exception as e:
        failure = explain(e, call, len(record.arrivals))
        if not is_memory(e):
            raise failure from e
    if failure is not None:
        # Outside the handler: its traceback would hold the tensors that filled the memory.
        free_memory()
        raise failure
    for name, ns in stages(marks.begins, marks.ends, record.arrivals, ready_ns).items():
        record.stage(name, ns)
    _device_stages(marks, record)
    check_answer(call, streamer.token_ids(), returned, watch)
    late = len(marks.begins) > 1 and marks.begins[1] < record.arrivals[0][0]
    return Outcome(returned, late)


def check_answer(call: Call, streamed: list[int], returned: list[int], watch: LogitWatch) -> None:
    """What came back must be what was counted, no more than asked, and made of numbers.

    Raises:
        TargetError: it is not; the message names what differs.
    """
    bad = watch.first_bad_step()
    if bad is not None:
        raise TargetError(
            f"the model's logits are not finite at output token {bad + 1} (NaN or infinity): its "
            "answer is noise. Check the checkpoint, or use bfloat16 or float32 instead of float16."
        )
    if streamed != returned:
        raise TargetError(
            f"{len(streamed)} tokens were counted as they arrived, generate() returned "
            f"{len(returned)}: the times cannot be matched to tokens."
        )
    if len(returned) > call.max_new_tokens:
        raise TargetError(
            f"the model gave {len(returned)} tokens, {call.max_new_tokens} were asked for."
        )
    if not returned:
        raise TargetError("the model gave no token.")
    if len(returned) == 1 and returned[0] in call.eos:
        raise TargetError(
            f"the model ended at once: its first token is the end token {returned[0]}. There is no "
            "answer to measure. Check the prompt, the chat template and the end tokens."
        )


def explain(e: Exception, call: Call, tokens: int) -> TargetError:
    """The message for an exception out of ``generate()``: its own words, and what to do."""
    cause = f"{type(e).__name__}: {e}"
    if is_memory(e):
        return TargetError(
            f"out of memory after {tokens} tokens, with a prompt of {call.prompt_tokens} and "
            f"{call.max_new_tokens} asked for ({cause}). Use shorter prompts, a smaller dtype, "
            "quantization: nf4, or a larger device."
        )
    text = str(e)
    if "probability tensor contains" in text:
        return TargetError(
            f"the model's logits are not finite at output token {tokens + 1} ({cause}). Check the "
            "checkpoint, or use bfloat16 or float32 instead of float16."
        )
    if "device-side assert" in text:
        return TargetError(
            f"a CUDA kernel failed after {tokens} tokens ({cause}). The CUDA context is lost: "
            "every later request of this process fails too. Start again."
        )
    return TargetError(f"generate() failed after {tokens} tokens ({cause}).")


def free_memory() -> None:
    """Give back what a failed or closed model held, as far as it can be."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def current_device(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Events are recorded on the current card, so the model's card is made the current one."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def is_memory(e: BaseException) -> bool:
    """Whether memory ran out, on the host or a device."""
    import torch

    return (
        isinstance(e, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in str(e)
        or "out of memory" in str(e).lower()
    )


def _device_stages(marks: StageMarks, record: Recorder) -> None:
    """``prefill_device`` and ``decode_device``: the device's own times of the same forwards."""
    steps = marks.device_ms()
    if steps:
        record.stage("prefill_device", round(steps[0] * NS_PER_MS))
        record.stage("decode_device", round(sum(steps[1:]) * NS_PER_MS))
