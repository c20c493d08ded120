"""Device time by CUPTI, wall time of calls sent back to back, the cost of a call inside one program, and the copy."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CACHE = 60e6  # bytes of the largest L2 among common GPUs (H100, H200); inputs rotate until twice as many were touched
MOST_SETS = 32
HELD = 16e9  # bytes of outputs that may be alive at once


class Timing(NamedTuple):
    """Microseconds a call: median and quartiles over `repetitions`."""

    median: float
    low: float
    high: float
    repetitions: int
    method: str


def _summary(seconds: Sequence[float], method: str) -> Timing:
    low, median, high = (float(x) * 1e6 for x in np.percentile(seconds, (25, 50, 75)))
    return Timing(median, low, high, len(seconds), method)


def rotation(bytes_per_call: int) -> int:
    """How many sets of inputs make each call read from memory: 1 where a call overflows the cache by itself."""
    return int(min(MOST_SETS, max(1, -(-2 * CACHE // bytes_per_call)))) if bytes_per_call < 2 * CACHE else 1


def rotated(sets: Sequence[Any], count: int) -> list[Any]:
    """The sets, with copies in other places until there are `count`."""
    full = list(sets)
    while len(full) < count:
        full.append(jax.tree.map(lambda x: jnp.array(x, copy=True), full[0]))
    return jax.block_until_ready(full)


class _Rotating:
    """A function of no arguments whose calls take the sets in turn; the profiler takes it for a jitted one."""

    def __init__(self, function: Callable[..., Any], sets: Sequence[Any]):
        self.function, self.sets, self.calls = function, sets, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*self.sets[self.calls % len(self.sets)])

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    trace = eval_shape = lower


@functools.cache
def _profiler() -> Any:
    """The CUPTI profiler's `measure`, or the reason why there is none."""
    if jax.default_backend() != "gpu":
        return "not a GPU"
    try:
        from jax.experimental.mosaic.gpu import profiler

        by_cupti = functools.partial(profiler.measure, aggregate=False)
        if "mode" in inspect.signature(profiler.measure).parameters:
            by_cupti = functools.partial(by_cupti, mode="cupti")
        one = jax.jit(lambda x: x * 2).lower(jnp.ones((1024, 1024))).compile()
        times: Any
        _, times = by_cupti(_Rotating(one, [(jnp.ones((1024, 1024)),)]), iterations=2)()
        if not times or not all(kernels and kernels[0][1] > 0 for kernels in times):
            return f"CUPTI saw no kernel in a call that launches one: {times}"
        return by_cupti
    except Exception as error:  # private bindings: anything may have moved
        return f"{type(error).__name__}: {error}"


def why_no_cupti() -> str | None:
    found = _profiler()
    return found if isinstance(found, str) else None


def device_time(function: Callable[..., Any], sets: Sequence[Any], one_call: float, out_bytes: int) -> tuple[Any, Any]:
    """(Timing, kernels a call) by CUPTI: the sum of a call's kernels without the gaps between; None without CUPTI."""
    by_cupti = _profiler()
    if isinstance(by_cupti, str):
        return None, None
    most = max(3, int(HELD / max(out_bytes, 1)))
    count = int(min(most, max(5, min(60, 0.15 / max(one_call, 1e-6)))))
    try:
        _, times = by_cupti(_Rotating(function, sets), iterations=count)()
    except RuntimeError:  # its check that every call launched the same kernels
        return None, None
    if not times:
        return None, 0
    return _summary([sum(ms for _, ms in call) / 1e3 for call in times], "cupti"), len(times[0])


def call_time(function: Callable[..., Any], sets: Sequence[Any], seconds: float = 0.1, rounds: int = 7) -> Timing:
    """Wall time of calls sent back to back, without waiting between them: the gaps between kernels count."""
    jax.block_until_ready(function(*sets[0]))
    started = time.perf_counter()
    jax.block_until_ready(function(*sets[0]))
    one = time.perf_counter() - started
    if one > seconds:
        return _summary([one], "call")
    count = max(1, int(seconds / rounds / max(one, 1e-6)))
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        for k in range(count):
            out = function(*sets[k % len(sets)])
        jax.block_until_ready(out)
        found.append((time.perf_counter() - started) / count)
    return _summary(found, "calls back to back")


def chain_time(step: Callable[[Any], Any], first: Any, lengths: tuple[int, int]) -> Timing:
    """A call's cost inside one program: the difference of two unrolled chains of dependent calls."""

    def chain(n: int) -> Any:
        def program(x: Any) -> Any:
            for _ in range(n):
                x = step(x)
            return x

        return jax.jit(program).lower(first).compile()

    short, long = map(chain, lengths)
    walls: dict[int, list[float]] = {0: [], 1: []}
    for program in (short, long):
        jax.block_until_ready(program(first))
    for _ in range(15):
        for k, program in enumerate((short, long)):
            started = time.perf_counter()
            jax.block_until_ready(program(first))
            walls[k].append(time.perf_counter() - started)
    slopes = (np.array(walls[1]) - np.array(walls[0])) / (lengths[1] - lengths[0])
    return _summary(slopes.tolist(), f"chain of {lengths[1]} less chain of {lengths[0]}")


@jax.jit
def _copy(x: Any) -> Any:
    return x ^ jnp.uint32(
        1
    )  # a kernel of one read and one write an element; a bare copy is no kernel, and CUPTI skips it


@functools.lru_cache(maxsize=256)
def copy_time(moved: int) -> Timing:
    """The fastest copy of `moved` bytes in all (half read, half written): XLA's kernel, or the driver's own."""
    from ._driver import copy_seconds

    words = max(1, moved // 8)
    sets = rotated([(jnp.arange(words, dtype=jnp.uint32),)], rotation(moved))
    compiled = _copy.lower(*sets[0]).compile()
    memory = compiled.memory_analysis()
    sizes = (memory.argument_size_in_bytes, memory.output_size_in_bytes) if memory else (4 * words,)
    if any(not 4 * words <= n <= 4 * words + 4096 for n in sizes):  # XLA rounds sizes up
        raise RuntimeError(f"the copy was meant to read and write {4 * words} bytes, and XLA reports {sizes}")
    wall = call_time(compiled, sets)
    found = [timing for timing in (device_time(compiled, sets, wall.median / 1e6, 4 * words)[0],) if timing]
    driven = copy_seconds([s[0] for s in sets])
    if driven:
        found.append(_summary(driven, "driver's copy, events"))
    return min(found or [wall], key=lambda timing: timing.median)
