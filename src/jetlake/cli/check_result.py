"""The outcome of a monitoring check: findings and measurements, as Nagios, Prometheus, JSON or people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

__all__ = ["CheckFormat", "CheckResult", "Measure", "is_beyond", "render_prometheus"]

CheckFormat = Literal["nagios", "json", "prometheus", "text"]
_CODES = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}


class Measure(Struct, frozen=True, omit_defaults=True):
    """A value that was measured, with the thresholds it was compared with."""

    name: str
    value: float
    warning: float = 0
    critical: float = 0
    unit: str = ""
    help: str = ""

    def render(self) -> str:
        """Return it as performance data of Nagios."""
        digits = 4 if self.unit == "s" else 0 if self.value == int(self.value) else 2
        thresholds = f";{self.warning:.{digits}f};{self.critical:.{digits}f}" if self.warning or self.critical else ""
        return f"{self.name}={self.value:.{digits}f}{self.unit}{thresholds}"


class CheckResult:
    """What a check found; the worst finding decides the status.

    Args:
        suite: the kind of the check, such as `stream`.
        name: the object of the check.
    """

    def __init__(self, suite: str, name: str) -> None:
        self.suite = suite
        self.name = name
        self.criticals: list[str] = []
        self.warnings: list[str] = []
        self.oks: list[str] = []
        self.measures: list[Measure] = []

    @property
    def status(self) -> str:
        """The status by the names of Nagios."""
        return "CRITICAL" if self.criticals else "WARNING" if self.warnings else "OK"

    @property
    def exit_code(self) -> int:
        """The exit code that a monitoring plugin has for this status."""
        return _CODES[self.status]

    def measure(
        self, name: str, value: float, warning: float = 0, critical: float = 0, *, unit: str = "", help: str = ""
    ) -> None:
        """Note a value."""
        self.measures.append(Measure(name, value, max(warning, 0), max(critical, 0), unit, help))

    def judge(self, text: str, value: float, warning: float | None, critical: float | None) -> None:
        """Note a finding by thresholds, of which None and those below zero are none.

        A critical threshold below the warning one means that small values are bad.
        """
        if is_beyond(value, critical, warning, critical):
            self.criticals.append(text)
        elif is_beyond(value, warning, warning, critical):
            self.warnings.append(text)
        else:
            self.oks.append(text)

    def render(self, kind: CheckFormat, namespace: str) -> str:
        """Return the result as text in a format."""
        if kind == "json":
            return msgspec.json.format(msgspec.json.encode(self._fields()), indent=2).decode()
        if kind == "prometheus":
            return render_prometheus([self], namespace)
        return self._render_nagios() if kind == "nagios" else self._render_text()

    def _fields(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "check_suite": self.suite,
            "check_name": self.name,
            "warning": self.warnings,
            "critical": self.criticals,
            "ok": self.oks,
            "perf_data": self.measures,
        }

    def _render_nagios(self) -> str:
        findings = [
            *(f"Crit:{text}" for text in self.criticals),
            *(f"Warn:{text}" for text in self.warnings),
            *(f"OK:{text}" for text in self.oks),
        ]
        line = " ".join([self.status, self.name, *findings])
        return f"{line} | {' '.join(one.render() for one in self.measures)}" if self.measures else line

    def _render_text(self) -> str:
        lines = [f"{self.name}: {self.status}", ""]
        for label, texts in (("Critical", self.criticals), ("Warning", self.warnings), ("OK", self.oks)):
            lines += [f"  {label:>8}: {text}" for text in texts]
        if self.measures:
            lines += ["", *(f"  {one.name}: {one.value:,.4g}{one.unit}" for one in self.measures)]
        return "\n".join(lines)


def is_beyond(value: float, threshold: float | None, warning: float | None, critical: float | None) -> bool:
    """Return whether a value is at or beyond a threshold; below it where the critical one is the smaller of the two."""
    if threshold is None or threshold < 0:
        return False
    is_inverted = warning is not None and critical is not None and 0 <= critical < warning
    return value <= threshold if is_inverted else value >= threshold


def render_prometheus(results: Sequence[CheckResult], namespace: str) -> str:
    """Return results in the text format of Prometheus, the values of one metric together."""
    metrics: dict[str, tuple[str, list[str]]] = {}
    for result in results:
        item = f'item="{_escaped(result.name)}"'
        for one in result.measures:
            help_text = one.help or f"Data about the check {result.suite}"
            rows = metrics.setdefault(f"{namespace}_{result.suite}_{one.name}", (help_text, []))[1]
            rows.append(f"{{{item}}} {one.value:.12g}")
        status = f"Nagios compatible status code for {result.suite}"
        rows = metrics.setdefault(f"{namespace}_{result.suite}_status_code", (status, []))[1]
        rows.append(f'{{{item},status="{result.status}"}} {result.exit_code}')
    return "\n".join(
        line
        for name, (text, rows) in metrics.items()
        for line in (f"# HELP {name} {text}", f"# TYPE {name} gauge", *(name + row for row in rows))
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
