"""report.html: one self-contained file, from the report dict; needs the extra ``[html]``.

jinja2 and matplotlib are imported only while a page is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

REPORT_HTML = "report.html"
SERVICES_HTML = "services.html"
_NEEDS = ("jinja2", "matplotlib")


def missing() -> str:
    """What to install before a page can be rendered; empty when nothing is missing."""
    lacking = [name for name in _NEEDS if find_spec(name) is None]
    if not lacking:
        return ""
    return (
        f"{REPORT_HTML} needs {' and '.join(lacking)}: pip install 'pytest-llmsla[html]', or leave "
        "html out of report.formats"
    )


def render(
    report: Mapping[str, Any],
    *,
    digests: Mapping[str, str] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The sign-off page of one run; foreign text in it is inert.

    Args:
        report: the dict of report.json.
        digests: SHA-256 by file name, for the sign-off block.
        history: earlier runs of the folder, as :func:`reports.folder.history` gives them.

    Raises:
        UsageError: the extra ``[html]`` is not installed.
    """
    _require()
    from .page import render as rendered

    return rendered(report, digests or {}, history)


def render_services(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Several services on one page: one row a service, one column a rule.

    Args:
        reports: (where it came from, the dict of report.json), in the order to show.

    Raises:
        UsageError: the extra ``[html]`` is not installed.
    """
    _require()
    from .services import render as rendered

    return rendered(reports)


def _require() -> None:
    from ...errors import UsageError

    if lacking := missing():
        raise UsageError(lacking)
