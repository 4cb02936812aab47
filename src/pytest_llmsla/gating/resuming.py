"""``--sla-resume``: the run to continue, read and checked before anything is loaded."""

from __future__ import annotations

import pytest

from ..errors import UsageError
from ..policy import LoadedPolicy
from ..probes import host
from ..resume import Earlier, earlier_run, refuse_repeating
from .options import Options


def take_up(opts: Options, loaded: LoadedPolicy | None) -> Earlier | None:
    """Read the run that ``--sla-resume`` names; None without one.

    Args:
        opts: the options.
        loaded: the policy that is gated, None when only tests are.

    Raises:
        pytest.UsageError: it is none, or was measured elsewhere or under another policy.
    """
    if opts.resume is None:
        return None
    try:
        earlier = earlier_run(opts.resume)
        earlier.refuse_other_machine(host.facts())
        _refuse_forgotten(earlier, opts, loaded)
        if loaded is not None:
            check_gate(earlier, None, loaded)
    except UsageError as e:
        raise pytest.UsageError(str(e)) from None
    return earlier


def check_gate(earlier: Earlier, key: str | None, loaded: LoadedPolicy) -> None:
    """Raise UsageError where a gate cannot be continued under this policy."""
    refuse_repeating(loaded)
    earlier.refuse_other_policy(key, loaded)


def _refuse_forgotten(earlier: Earlier, opts: Options, loaded: LoadedPolicy | None) -> None:
    """A run that did not stand beside its baseline is compared again when it goes on.

    Raises:
        UsageError: nothing asks for that.
    """
    asked = opts.baseline is not None or (loaded is not None and loaded.policy.baseline.path)
    if earlier.compared is not None and not asked:
        raise UsageError(
            f"--sla-resume {earlier.path}: that run was compared with a baseline "
            f"({earlier.compared:.200}). Going on would forget it: give --sla-baseline again."
        )
