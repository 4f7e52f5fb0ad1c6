"""Every executor on a device against dense on the CPU in float64: values and gradients.

All registered executors and patterns are checked: a new one needs no change here. An executor that compiles a kernel for each
case is checked on long rows only, which is where it runs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from formers.attention import EXECUTORS
from formers.attention.attend import Executor
from formers.attention.executors.flex_kernel import KernelRefused
from formers.core.devices import capabilities
from formers.core.precision import float32_products
from formers.inspect.measure.doctor.cases import NAMES, Case, computed, long_cases, on_device, reference, short_cases
from formers.inspect.measure.doctor.clock import finish, timed
from formers.inspect.measure.doctor.compare import LIMITS, as_number, brief, difference
from formers.inspect.measure.doctor.dropout import compare_dropped

QUICK = ("float64", "float32")
HALF = ("bf16", "fp16")
Tick = Callable[[str], None]
"""Called with what is checked next."""


def check_executors(
    device: str, thorough: bool = False, precisions: Sequence[str] = QUICK, tick: Tick | None = None, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """A verdict on each executor, or on those with these names, ready for JSON.

    A thorough check also has times, and all cases of executors that compile kernels.
    """
    cases = [*short_cases(), *long_cases()]
    there = torch.device(device)
    wanted = [name for name in precisions if name != "float64" or capabilities(there).float64]
    right: dict[tuple[str, str], list[Tensor]] = {}
    with warnings.catch_warnings(), float32_products(False, there):
        warnings.simplefilter("ignore")  # warnings of torch's own kernels do not count
        checks = [ExecutorCheck(name, EXECUTORS[name], there, thorough, right) for name in (EXECUTORS if names is None else names)]
        return [check.verdict(cases, wanted, tick) for check in checks]


class ExecutorCheck:
    """The check of one executor on one device."""

    def __init__(
        self, name: str, executor: Executor, device: torch.device, thorough: bool, right: dict[tuple[str, str], list[Tensor]]
    ) -> None:
        self.name, self.executor, self.device, self.thorough, self.right = name, executor, device, thorough, right
        self.largest: dict[str, float] = {}
        self.refused: dict[str, list[str]] = {}
        self.wrong: list[str] = []
        self.checked = 0
        self.times: dict[str, Any] = {}

    def verdict(self, cases: list[Case], precisions: list[str], tick: Tick | None) -> dict[str, Any]:
        """Whether an executor works, refuses everything, or is wrong; with its largest differences and what it refuses."""
        for precision in precisions:
            if tick is not None:
                tick(f"{self.name} in {precision}")
            for case in cases:
                if self.wants(case, precision):
                    self.check(case, precision)
        status = "wrong" if self.wrong else "works" if self.largest else "refuses"
        return {
            "executor": self.name,
            "about": self.executor.about,
            "device": str(self.device),
            "checked": self.checked,
            "status": status,
            "largest_difference": {precision: as_number(value) for precision, value in self.largest.items()},
            "refuses": self.refused,
            "wrong": self.wrong,
            **({"times": self.times} if self.thorough else {}),
        }

    def wants(self, case: Case, precision: str) -> bool:
        """Whether a case is checked: half precision in long rows only, and few cases by an executor that compiles kernels."""
        kernels = self.executor.kernels
        if kernels is None:
            return case.long or precision not in HALF
        if not case.long or (precision in HALF and not case.half):
            return False
        return self.thorough or self.checked < kernels

    def check(self, case: Case, precision: str) -> None:
        """Compares one case."""
        name = f"{case.name}, {precision}"
        try:
            request, tensors = on_device(case, precision, self.device)
            why = self.executor.unsupported(request, *tensors[:3])
            if why is not None:
                self.refused.setdefault(why, []).append(name)
                return
            start = time.perf_counter()
            found = computed(self.executor.run, request, tensors)
            finish(self.device)
            first = time.perf_counter() - start
            if self.thorough and case.long:
                self.clock(name, lambda: computed(self.executor.run, request, tensors), first)
        except KernelRefused as refusal:  # another executor computes it
            self.refused.setdefault(str(refusal), []).append(name)
            return
        except Exception as error:  # any error of a kernel
            self.wrong.append(f"{name}: {brief(error)}")
            return
        self.checked += 1
        for what, by in self.differences(case, precision, found).items():
            self.largest[precision] = max(self.largest.get(precision, 0.0), by)
            if not by <= LIMITS[precision]:
                self.wrong.append(f"{name}: largest difference {by:.1e} in {what}")

    def differences(self, case: Case, precision: str, found: list[Tensor]) -> dict[str, float]:
        """The differences of values and gradients from the reference."""
        if case.request.dropout:
            return compare_dropped(found, case, precision)
        if (case.name, precision) not in self.right:
            self.right[case.name, precision] = reference(case, precision)
        return {what: difference(ours, right) for what, ours, right in zip(NAMES, found, self.right[case.name, precision], strict=False)}

    def clock(self, name: str, run: Callable[[], object], first: float) -> None:
        """Records the time of the first call, and, once for each precision, the median of later ones."""
        if self.executor.kernels is not None:
            later = timed(run, self.device, 1).later
            self.times["compile_seconds"] = self.times.get("compile_seconds", 0.0) + max(0.0, first - later)
            self.times["compiled"] = self.times.get("compiled", 0) + 1
        precision = name.rpartition(", ")[2]
        if precision not in self.times:
            self.times[precision] = {"case": name.rpartition(", ")[0], "first_seconds": first, "seconds": timed(run, self.device).later}
