"""Runs an estimator by an implementation: is it right, and how long does a call take."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rltriton_jax

from .. import _backends, _reference
from ._calls import CALLS, Arguments
from ._data import Data

BASE = "associative_scan"
INTERPRETED = (32, 8)  # steps and columns for Triton's interpreter
# The largest error that rounding explains, in units of the largest output (of 1 where that is less).
TOLERANCE = {"float32": 2e-5, "bfloat16": 8e-3, "float64": 1e-12}
CHECKED_COLUMNS, CHECKED_STEPS = 64, 1 << 18
REPEATS, SECONDS = 50, 0.3


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table; errors are None where nothing was compared, and after a failure."""

    estimator: str
    implementation: str
    shape: tuple[int, int]
    error_loop: float | None = None
    columns_checked: int = 0
    error_associative_scan: float | None = None
    wall_seconds: float | None = None
    ok: bool = False
    failure: str | None = None


def why_not(implementation: str) -> str | None:
    """Why this implementation cannot run here, or None."""
    if implementation == "triton":
        if jax.default_backend() != "gpu":
            return f"it needs a GPU, and JAX runs on {jax.default_backend()}"
        return _backends._jax_triton.why_not()
    if implementation == "interpret":
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"Triton does not import: {error}"
    return None


def _lowered(estimator: str, args: Arguments, implementation: str) -> jax.stages.Lowered:
    """A function of the arrays among `args`, ready to be compiled."""
    rest = {name: x for name, x in args.items() if not isinstance(x, jax.Array)}

    def call(arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        out = getattr(rltriton_jax, estimator)(**arrays, **rest, implementation=implementation)
        return tuple(out) if isinstance(out, tuple) else (out,)

    return jax.jit(call).lower(_arrays(args))


def _arrays(args: Arguments) -> dict[str, jax.Array]:
    return {name: x for name, x in args.items() if isinstance(x, jax.Array)}


def _wall(call: Callable[..., Any], arrays: dict[str, jax.Array]) -> float:
    """The median time of calls after the first, fewer where they are slow."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < SECONDS):
        start = time.perf_counter()
        jax.block_until_ready(call(arrays))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _largest(errors: list[float]) -> float:
    """Their maximum; unlike Python's it keeps a NaN."""
    return float(np.max(errors))


def _difference(got: tuple[jax.Array, ...], wanted: tuple[jax.Array, ...]) -> float:
    """The largest difference, over the largest of `wanted`; computed on the device."""

    @jax.jit
    def of(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = jnp.promote_types(x.dtype, jnp.float32)
        x, y = x.astype(wide), y.astype(wide)
        return jnp.max(jnp.abs(x - y), initial=0.0), jnp.maximum(1.0, jnp.max(jnp.abs(y), initial=0.0))

    pairs = (of(x, y) for x, y in zip(got, wanted, strict=True))
    return _largest([float(difference / scale) for difference, scale in pairs])


class Comparison:
    """One estimator on some data: the float64 loop over some columns, and what lax.associative_scan gives."""

    def __init__(self, estimator: str, data: Data, seed: int):
        self.estimator, self.args, self.shape = estimator, CALLS[estimator](data), data.shape
        self._programs: dict[str, Callable[..., Any]] = {}
        self.dtype = str(data.rewards.dtype)
        length, columns = data.shape
        count = max(1, min(CHECKED_COLUMNS, columns, CHECKED_STEPS // length))
        self.columns = np.sort(np.random.default_rng(seed).choice(columns, count, replace=False))
        picked = {name: self._pick(x) if isinstance(x, jax.Array) else x for name, x in self.args.items()}
        wanted = getattr(_reference, estimator)(**picked)
        self.wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        self._kept: tuple[jax.Array, ...] | None = None

    def _pick(self, x: jax.Array) -> np.ndarray:
        """The checked columns; arrays are `[T, B, ...]`, or `[B]` past the window."""
        return np.asarray(x[self.columns] if x.ndim == 1 else x[:, self.columns])

    def _loop_error(self, outs: tuple[jax.Array, ...]) -> float:
        errors = []
        for out, wanted in zip(outs, self.wanted, strict=True):
            difference = np.abs(self._pick(out).astype(np.float64) - wanted)
            errors.append(float(np.max(difference, initial=0.0) / max(1.0, np.max(np.abs(wanted), initial=0.0))))
        return _largest(errors)

    def prepare(self, implementation: str) -> Callable[[], None]:
        """What is left of compiling a call, which any thread may do. What fails is left to `run`, which says why."""

        def finish() -> None:
            with contextlib.suppress(Exception):
                self._programs[implementation] = lowered.compile()

        try:
            lowered = _lowered(self.estimator, self.args, implementation)
        except Exception:
            return lambda: None
        return finish

    def _program(self, implementation: str) -> Callable[..., Any]:
        if implementation not in self._programs:
            self._programs[implementation] = _lowered(self.estimator, self.args, implementation).compile()
        return self._programs[implementation]

    def _base(self) -> tuple[jax.Array, ...]:
        if self._kept is None:
            self._kept = self._program(BASE)(_arrays(self.args))
        return self._kept

    def run(self, implementation: str) -> Result:
        """Checked and timed; whatever an implementation raises is its result."""
        result = Result(self.estimator, implementation, self.shape, columns_checked=len(self.columns))
        try:
            call, arrays = self._program(implementation), _arrays(self.args)
            outs = jax.block_until_ready(call(arrays))
            if implementation == BASE:
                self._kept = outs
            scan = None if implementation == BASE else _difference(outs, self._base())
            loop, seconds = self._loop_error(outs), _wall(call, arrays)
        except Exception as error:
            return dataclasses.replace(result, failure=f"{type(error).__name__}: {error}")
        if not math.isfinite(loop + (scan or 0.0)):
            return dataclasses.replace(result, wall_seconds=seconds, failure="the outputs are not finite")
        ok = max(loop, scan or 0.0) <= TOLERANCE[self.dtype]
        return dataclasses.replace(result, error_loop=loop, error_associative_scan=scan, wall_seconds=seconds, ok=ok)
