"""The gate before timing: outputs and gradients of a few columns against float64 loops in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._cases import Case
from ._estimators import ESTIMATORS, LONG, Ops

TOLERANCE = {"float32": 2e-5, "bfloat16": 1.2e-2}
STEPS_IN_ALL = 1 << 20  # of the reference, over all columns: about a second
DIRECTIONS = 3

Column = dict[str, Any]


def solve(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    """x[t] = a[t] x[next] + b[t] of one column, one step at a time."""
    a = np.broadcast_to(a, b.shape)
    order = slice(None, None, -1) if reverse else slice(None)
    x, out = 0.0, []
    for a_t, b_t in zip(a[order].tolist(), b[order].tolist(), strict=True):
        x = a_t * x + b_t
        out.append(x)
    return np.array(out)[order]


def reference(case: Case, column: Column) -> tuple[Any, ...]:
    """The outputs of one column; masked rows are deleted before and are 0 after."""
    spec = ESTIMATORS[case.estimator]
    live = column.get("mask", np.ones(case.length)) != 0
    kept = {}
    for name, x in column.items():
        long = spec.operands.get(name) == LONG
        kept[name] = np.concatenate([x[:-1][live], x[-1:]]) if long else x[live]
    if not live.any():
        return tuple(np.zeros(case.length) for _ in range(spec.outs))
    outs = []
    for short in spec.plain(Ops(np, 0, solve), kept):
        full = np.zeros(case.length)
        full[live] = short
        outs.append(full)
    return tuple(outs)


def sampled(case: Case) -> list[tuple[int, ...]]:
    """The first and the last column and some between, as indices of the batch axes."""
    batch = tuple(n for i, n in enumerate(case.shape) if i != case.time_axis)
    count = min(case.columns, max(1, min(4, STEPS_IN_ALL // case.length)))
    between = np.random.default_rng(case.columns).integers(0, case.columns, max(0, count - 2)).tolist()
    flat = dict.fromkeys([0, case.columns - 1, *between][:count])
    return [tuple(map(int, np.unravel_index(i, batch))) for i in flat]


def pick(x: Any, index: tuple[int, ...], axis: int) -> Any:
    """One column in float64."""
    place = [*index[:axis], slice(None), *index[axis:]]
    return np.asarray(x[tuple(place)]).astype(np.float64)


def _error(got: Any, wanted: Any) -> float:
    """The greatest difference over the greatest value; NaN counts as infinite."""
    difference = np.max(np.abs(got - wanted), initial=0.0)
    return float(difference / max(np.max(np.abs(wanted), initial=0.0), 1.0)) if np.isfinite(difference) else np.inf


class Gate:
    """Columns of one case's inputs, and whether what an implementation made of them is right."""

    def __init__(self, case: Case, args: dict[str, Any], cotangents: tuple[Any, ...] = ()):
        self.case, self.at = case, sampled(case)
        self.columns = [{k: pick(x, i, case.time_axis) for k, x in args.items()} for i in self.at]
        self.cotangents = [[pick(x, i, case.time_axis) for x in cotangents] for i in self.at]
        self.wanted = [reference(case, column) for column in self.columns]
        self._slopes: list[list[tuple[Column, float, float]]] | None = None

    def error(self, results: Any) -> float:
        """The greatest relative error over the sampled columns."""
        outs, gradients = results if self.case.gradient else (results, {})
        worst = 0.0
        for i, wanted in zip(self.at, self.wanted, strict=True):
            for out, right in zip(outs, wanted, strict=True):
                if out.shape != self.case.shape:
                    return np.inf
                worst = max(worst, _error(pick(out, i, self.case.time_axis), right))
        return max(worst, self._gradient_error(gradients)) if self.case.gradient else worst

    def passes(self, error: float) -> bool:
        return error <= TOLERANCE[self.case.dtype]

    def _gradient_error(self, gradients: dict[str, Any]) -> float:
        """Directional derivatives of the reference against the gradient times the direction."""
        if self._slopes is None:
            self._slopes = [self._differences(k) for k in range(len(self.at))]
        worst = 0.0
        for i, slopes in zip(self.at, self._slopes, strict=True):
            own = {name: pick(g, i, self.case.time_axis) for name, g in gradients.items()}
            for direction, slope, scale in slopes:
                got = sum(float(own[name] @ d) for name, d in direction.items())
                worst = max(worst, abs(got - slope) / scale if np.isfinite(got) else np.inf)
        return worst

    def _differences(self, k: int) -> list[tuple[Column, float, float]]:
        """Of column k: directions of 65 steps, the slope of <cotangents, outputs> along each, and the terms' size."""
        rng = np.random.default_rng(k)
        found = []
        for n in range(DIRECTIONS if self.case.length <= 1 << 18 else 1):
            starts = (0, max(0, self.case.length - 64), int(rng.integers(0, self.case.length)))
            direction = {}
            for name in ESTIMATORS[self.case.estimator].wanted:
                d = np.zeros_like(self.columns[k][name])
                window = slice(starts[n], starts[n] + 65)
                d[window] = rng.standard_normal(len(d[window]))
                direction[name] = d
            step = 1e-6

            def along(by: float, direction: Column = direction) -> tuple[Any, ...]:
                return reference(
                    self.case, {**self.columns[k], **{m: self.columns[k][m] + by * d for m, d in direction.items()}}
                )

            terms = [
                ct * (up - down) / (2 * step)
                for ct, up, down in zip(self.cotangents[k], along(step), along(-step), strict=True)
            ]
            scale = max(1.0, float(np.sqrt(sum(np.sum(t * t) for t in terms))))
            found.append((direction, float(sum(t.sum() for t in terms)), scale))
        return found
