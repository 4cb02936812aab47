"""Transformers' continuous-batching manager as an engine: made, watched and ended.

The manager runs a loop in a thread of its own: schedule, one forward for all live requests, ids
to the host, hand them out. A token's time is the manager's own stamp, taken right after the ids of
the step were copied to the host (``record_timestamps``); what it puts into its output queue comes
0.2 to 0.7 ms later, so the queue is not used: outputs are taken where the manager hands them out.

Set apart from the manager's defaults, so that a run is what its report says: no sharing of prefix
blocks between requests, no CUDA graphs and no double buffering (both hide forwards from the
clock), no switch to another attention kernel, and a cache pool that holds every request in flight
whole, where memory allows: where it does not, requests wait in line, and none is evicted.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import transformers

from ..errors import LlmslaError, TargetError, UsageError
from .hf_describe import kv_bytes_per_token
from .hf_run import free_memory, is_memory
from .hf_spec import HfSpec
from .hf_steps import Quiet, Receiver, Steps, router

OTHERS = "Use target.batching: threads or batch"
STEP_TOKENS = 2048
"""Most tokens of one forward: a longer prompt is read in pieces, between others' tokens."""
FEWEST_TOKENS = 1024
"""The pool is made for requests of at least so many tokens, prompt and answer."""
_PAGE = 256
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")


def refuse(spec: HfSpec, model: Any, devices: list[str]) -> None:
    """Refuse what continuous batching cannot run as the policy says it.

    Raises:
        UsageError: with the reason, and the batching to use instead.
    """
    why = _why_not(spec, model, devices)
    if why is not None:
        raise UsageError(f"target.batching: continuous is not possible here: {why}. {OTHERS}.")


def _why_not(spec: HfSpec, model: Any, devices: list[str]) -> str | None:
    if _config_class() is None or not hasattr(model, "init_continuous_batching"):
        return (
            f"transformers {transformers.__version__} has no continuous batching that this "
            "package knows (5.17 and later have)"
        )
    if len(devices) != 1:
        return f"the model is spread over {', '.join(devices)}"
    if devices[0] == "mps":
        return "on MPS its times have not been checked"
    asked = {"cache": (spec.cache, "dynamic"), "use_cache": (spec.use_cache, True)}
    asked["compile"] = (spec.compile, False)
    for key, (value, needed) in asked.items():
        if value != needed or type(value) is not type(needed):
            kept = str(needed).lower()
            return f"it brings a paged cache of its own, so of {key} only {kept} can be kept"
    kernel = str(model.config._attn_implementation)
    if kernel not in _ATTENTION:
        return f"its cache works with {', '.join(_ATTENTION)}; attn is {kernel}"
    return None


def _config_class() -> Any:
    """The manager's settings; None where this transformers has none."""
    from transformers.generation import configuration_utils

    return getattr(configuration_utils, "ContinuousBatchingConfig", None)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request as the manager takes it."""

    key: str
    ids: list[int]
    new: int
    forced: bool

    @property
    def blocks(self) -> int:
        """What it takes of the pool when it is complete."""
        return math.ceil((len(self.ids) + self.new) / _PAGE)


def pool_blocks(model: Any, size: int, each: int) -> int:
    """Blocks of a pool for ``size`` requests of ``each`` blocks.

    At most what half of the free memory holds; at least one request.
    """
    per_token = kv_bytes_per_token(model)
    if per_token is None:
        return size * each
    if model.device.type == "cuda":
        free = int(torch.cuda.mem_get_info(model.device)[0])
    else:
        free = int(psutil.virtual_memory().available)
    return max(each, min(size * each, free // 2 // (per_token * _PAGE)))


class Engine:
    """One manager, from its making to its end. Used by one thread; the manager has its own.

    ``sampling`` holds ``generate()`` arguments, the same for all requests. The pool holds ``size``
    requests of ``tokens`` tokens (prompt and answer), or as many as half of the free memory does.

    Raises:
        UsageError: the manager cannot honour the sampling, or cannot run this model.
        TargetError: there is no memory for the pool.
    """

    def __init__(
        self,
        model: Any,
        sampling: Mapping[str, Any],
        seed: int | None,
        *,
        eos: tuple[int, ...],
        size: int,
        tokens: int,
        receiver: Receiver,
    ) -> None:
        self.tokens = tokens
        self._model = model
        self._kernel = str(model.config._attn_implementation)
        self._blocks = pool_blocks(model, size, math.ceil(tokens / _PAGE))
        self._held: dict[str, int] = {}
        self._line: deque[_Call] = deque()
        self._lining = threading.RLock()
        self._quiet = Quiet()
        self._steps = Steps(model, sampling=bool(sampling["do_sample"]))
        self._manager: Any = None
        self.error: BaseException | None = None
        try:
            self._manager = self._make(sampling, seed, eos, size)
            self._manager.output_router = router(self._steps, receiver, self._release)
            self._manager.warmup()  # makes the pool, before any request's clock
            self._steps.watch()
            # A thread takes over whether it keeps the process alive: a forward that never returns
            # must not keep pytest from ending.
            starter = threading.Thread(target=self._manager.start, daemon=True)
            starter.start()
            starter.join()
        except Exception as e:
            refused = self._explain(e)
            self.stop(0.0)
            raise refused from None

    def _make(
        self, sampling: Mapping[str, Any], seed: int | None, eos: tuple[int, ...], size: int
    ) -> Any:
        made: Any = _config_class()
        known = {f.name for f in dataclasses.fields(made)}
        options: dict[str, Any] = {
            "num_blocks": self._blocks,
            "max_batch_tokens": STEP_TOKENS,
            "max_requests_per_batch": size,
            "max_blocks_per_request": 0,
            "allow_block_sharing": False,
            "use_async_batching": False,
            "use_cuda_graph": False,
            "safety_margin": 0.0,
            "seed": seed,
            "page_size" if "page_size" in known else "block_size": _PAGE,
        }
        if "auto_switch_to_flash" in known:
            options["auto_switch_to_flash"] = False
        else:
            self._model.set_attn_implementation(f"paged|{self._kernel}")
        config = transformers.GenerationConfig(
            eos_token_id=list(eos) or -1, pad_token_id=0, max_new_tokens=1, **sampling
        )
        self._check_processors(config)
        return self._model.init_continuous_batching(
            generation_config=config, continuous_batching_config=made(**options)
        )

    def _check_processors(self, config: Any) -> None:
        """The manager drops processors that see one request's own tokens: refused instead."""
        dropped = [] if config.repetition_penalty is None else ["repetition_penalty"]
        for processor in () if dropped else self._model._get_logits_processor(config):
            if getattr(processor, "supports_continuous_batching", None) is False:
                dropped.append(type(processor).__name__)
        if dropped:
            raise UsageError(
                f"workload.sampling: {', '.join(dropped)} is not to be had with target.batching: "
                f"continuous, whose steps see no request's earlier tokens. {OTHERS}, or leave that "
                "setting out."
            )

    def _explain(self, e: Exception) -> LlmslaError:
        if isinstance(e, LlmslaError):
            return e
        cause = f"{type(e).__name__}: {e}"
        if is_memory(e):
            return TargetError(
                f"no memory for the cache of continuous batching, {self._blocks * _PAGE} tokens "
                f"({cause}). Use fewer requests in flight, shorter prompts, or a larger device."
            )
        return UsageError(
            f"target.batching: continuous cannot run {type(self._model).__name__} ({cause}). "
            f"{OTHERS}."
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What was chosen for this engine: sizes in tokens, and what is switched off."""
        return {
            "pool_tokens": self._blocks * _PAGE,
            "page_tokens": _PAGE,
            "step_tokens": STEP_TOKENS,
            "attention": self._kernel,
            "cuda_graphs": False,
            "double_buffering": False,
            "prefix_sharing": False,
        }

    # -- requests

    def add(self, key: str, ids: list[int], new: int, *, forced: bool) -> None:
        """Hand over a request, or line it up for room; ``forced``: end tokens do not end it.

        Raises:
            TargetError: it is longer than the whole pool, or the manager has stopped.
        """
        call = _Call(key, ids, new, forced)
        if call.blocks > self._blocks:
            raise TargetError(
                f"the request needs {call.blocks * _PAGE} tokens of cache, and there is memory for "
                f"{self._blocks * _PAGE}. Use shorter prompts, or a larger device."
            )
        with self._lining:
            self._line.append(call)
            if not self._admit():
                raise TargetError(self.dead() or "continuous batching is ending")

    def _admit(self) -> bool:
        """Hand over those in line, in order, while there is room; false where none are taken."""
        while self._line:
            call = self._line[0]
            if call.blocks > self._blocks - sum(self._held.values()):
                return True
            self._line.popleft()
            self._held[call.key] = call.blocks
            added = self._manager.add_request(
                call.ids,
                request_id=call.key,
                max_new_tokens=call.new,
                streaming=True,
                record_timestamps=True,
                eos_token_id=-1 if call.forced else None,
            )
            if added is None:
                return False
        return True

    def cancel(self, key: str) -> None:
        """Stop a request before its next forward."""
        with self._lining:
            for call in self._line:
                if call.key == key:
                    self._line.remove(call)
                    return
        self._manager.cancel_request(key)

    def forget(self, key: str) -> None:
        """:meth:`cancel`, for a request that nobody waits for any more."""
        self.cancel(key)
        self._release(key)

    def gone(self, key: str) -> bool:
        """Whether a cancelled request is out of the manager."""
        manager = self._manager
        if not manager.cancel_queue.empty() or not manager.input_queue.empty():
            return False
        scheduler = manager.batch_processor.scheduler
        # A cancellation that is taken from the queue is done before the next forward; between
        # those two the request is still listed.
        if key in scheduler.active_requests or key in scheduler.waiting_requests:
            return False
        self._release(key)
        return True

    def _release(self, key: str) -> None:
        with self._lining:
            self._held.pop(key, None)
            if self._manager is not None and self._manager.is_running():
                self._admit()

    def dead(self) -> str | None:
        """Why the manager answers nothing any more; None while it runs."""
        manager = self._manager
        if manager is None or manager.is_running():
            return None
        fatal = manager.background_thread_status.fatal_error
        if fatal is None:
            return "the thread of continuous batching has ended"
        self.error = fatal.with_traceback(None)
        words = f"{type(fatal).__name__}: {fatal}"
        if "device-side assert" in words:
            return (
                f"a CUDA kernel failed ({words}). The CUDA context is lost: every later request of "
                "this process fails too. Start again."
            )
        if is_memory(fatal):
            return (
                f"out of memory in a step that all requests in flight shared ({words}). Use fewer "
                "of them, shorter prompts, a smaller dtype, or a larger device."
            )
        return f"continuous batching failed ({words})"

    @property
    def lost(self) -> bool:
        """Whether the device itself cannot be used any more."""
        return self.error is not None and "device-side assert" in str(self.error)

    def stop(self, within_s: float) -> bool:
        """End the manager and give its memory back; false where its thread goes on."""
        manager, ended, collected = self._manager, True, False
        if manager is not None:
            if manager.is_running():
                manager.stop(block=True, timeout=within_s, hard_stop=True)
                collected = True
            ended = not manager.is_running()
        if ended:
            self._steps.unwatch()
            if str(self._model.config._attn_implementation) != self._kernel:
                self._model.set_attn_implementation(self._kernel)
            self._manager = None
            if not collected or self._model.device.type != "cpu":
                free_memory()
        self._quiet.end()
        return ended
