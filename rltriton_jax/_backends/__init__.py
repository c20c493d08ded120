"""The ways to run a walk, of one signature: `run` over time that is whole, `leave` and `enter` over a shard of it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .._extras import install
from .._walk import EDGE, SUM, Walk, accumulator, batch_shape, out_shape
from . import _jax_triton
from ._plain import affine as affine
from ._plain import associative_prefix, by_associative_scan, by_scan, compose, scan_prefix, without_first
from ._plain import evaluate as evaluate
from ._plain import past_arrays as past_arrays
from ._plain import past_outputs as past_outputs
from ._plain import step_arrays as step_arrays
from ._tiles import tile_for
from ._view import view


def outputs(walk: Walk, avals, axis: int, dtypes) -> list[jax.ShapeDtypeStruct]:
    """The shapes and types of a walk's outputs."""
    full = batch_shape(walk, [x.shape for x in avals], axis)
    kinds = walk.all_kinds
    return [jax.ShapeDtypeStruct(out_shape(k, full, axis), d) for k, d in zip(kinds, dtypes, strict=True)]


class ByKernels:
    """The kernels, each run by `call(function, arrays, outs, grid, warps)`; outs of int32 are zeros at first."""

    def __init__(self, call):
        self._call = call

    def run(self, walk: Walk, operands, axis: int, dtypes):
        """The outputs of a walk over time that is whole."""
        seen, kernel = _plan(walk, operands, axis)
        return self._scan(walk, operands, axis, dtypes, seen, kernel, self._maps(walk, operands, axis, seen, kernel))

    def leave(self, walk: Walk, operands, axis: int):
        """(the map (a, b) from the state that enters a shard to the one that leaves it, what `enter` needs again)."""
        entry = entry_of(walk, operands, axis)
        walk, operands = entered(walk, operands, entry, entry)  # which no kernel reads before `enter`
        seen, kernel = _plan(walk, operands, axis)
        maps = self._maps(walk, operands, axis, seen, kernel)
        if kernel.total is None:
            a, b = maps[-2:]
            whole = functools.reduce(compose, zip(a, b, strict=True))
            return [x.reshape(entry.shape) for x in whole], maps
        grid = (kernel.grid[0] // kernel.tile.segments,)
        end = [x[-1:] for x in maps[:-2]] if walk.visits_past_end else []
        return self._launch(kernel.total, operands, [*end, *maps[-2:]], [entry, entry], grid), maps

    def enter(self, walk: Walk, operands, axis: int, dtypes, maps, entry, stepped):
        """The outputs of a shard which `entry` enters."""
        walk, operands = entered(walk, operands, entry, stepped)
        seen, kernel = _plan(walk, operands, axis)
        return self._scan(walk, operands, axis, dtypes, seen, kernel, maps)

    def _launch(self, which, operands, more, outs, grid):
        arrays = [operands[k] for k in which.operands]
        return list(self._call(which.function, [*arrays, *more], outs, grid, which.warps))

    def _maps(self, walk, operands, axis, seen, kernel):
        """The last live steps, if masks are followed, and the maps (a, y) of the segments."""
        extra = [last_live(walk, operands, axis, kernel)] if kernel.marks else []
        if kernel.reduce is None:
            return extra
        map_ = jax.ShapeDtypeStruct(
            (kernel.tile.segments, seen.columns), accumulator(walk, [x.dtype for x in operands])
        )
        before = [x[:-1] for x in extra] if kernel.marks > 1 else []
        return extra + self._launch(kernel.reduce, operands, before, [map_, map_], kernel.grid)

    def _scan(self, walk, operands, axis, dtypes, seen, kernel, maps):
        segments = kernel.tile.segments
        outs = outputs(walk, operands, axis, dtypes)
        if segments == 1:
            return self._launch(kernel.scan, operands, [], outs, kernel.grid)
        outs = [
            jax.ShapeDtypeStruct((segments, *out.shape), out.dtype) if kind == SUM else out
            for kind, out in zip(walk.all_kinds, outs, strict=True)
        ]
        live, maps = (maps, []) if kernel.words else (maps[:-2], maps[-2:])
        words = [jax.ShapeDtypeStruct((kernel.words, 2), jnp.int32)] if kernel.words else []
        results = self._launch(kernel.scan, operands, [*(x[:-1] for x in live), *maps], [*outs, *words], kernel.grid)
        return [
            jnp.sum(x, 0) if kind == SUM else x for kind, x in zip(walk.all_kinds, results[: len(outs)], strict=True)
        ]


def _plan(walk: Walk, operands, axis: int):
    """(the view of the operands, the kernel for it)."""
    from ._kernel import build

    types = tuple(jnp.dtype(x.dtype) for x in operands)
    seen = view(walk, [tuple(x.shape) for x in operands], axis, types)
    return seen, build(walk, types, seen, tile_for(seen))


def entered(walk: Walk, operands, entry, stepped):
    """(`walk` with the state that enters it, and that behind its first step, among its operands, these)."""
    given = {"entry": entry, "stepped": stepped}
    walk, n = walk.entered(), len(walk.names)
    return walk, [*operands, *(given[name] for name in walk.names[n:])]


def entry_of(walk: Walk, operands, axis: int):
    """The shape and type of a state at the edge."""
    full = batch_shape(walk, [x.shape for x in operands], axis)
    return jax.ShapeDtypeStruct(out_shape(EDGE, full, axis), accumulator(walk, [x.dtype for x in operands]))


def last_live(walk: Walk, operands, axis: int, kernel):
    """The position of the last live step before each of `kernel.marks` and behind the last, -1: none: [marks + 1, columns]."""
    full = batch_shape(walk, [x.shape for x in operands], axis)
    mask = jnp.broadcast_to(operands[walk.names.index(walk.mask)] != 0, full)
    live = jnp.moveaxis(mask, axis, 0).reshape(full[axis], -1)
    t = jnp.arange(full[axis], dtype=jnp.int32 if full[axis] < 2**31 else jnp.int64)
    position = jnp.where(live, (kernel.top - t if walk.reverse else t)[:, None], -1)
    if walk.reverse:
        position = position[::-1]
    before = kernel.top + 1 - full[axis] if walk.reverse else 0
    after = kernel.marks * kernel.stretch - before - full[axis]
    position = jnp.pad(position, ((before, after), (0, 0)), constant_values=-1)
    position = position.reshape(kernel.marks, kernel.stretch, -1)
    latest = jax.lax.cummax(jnp.max(position, axis=1), axis=0)
    return jnp.concatenate([jnp.full_like(latest[:1], -1), latest])


def _on_gpu(function, arrays, outs, grid, warps):
    return _jax_triton.call(function, arrays, outs, grid=grid, warps=warps, name="scan")


def _on_host(function, arrays, outs, grid, warps):
    def run(*values):
        from ._interpreter import run

        results = [_poisoned(out) for out in outs]
        inputs = [_whole(x, like) for x, like in zip(values, arrays, strict=True)]
        run(function, grid, [*inputs, *results])
        return [x.reshape(*x.shape, 1).view(np.uint32) if _wide(x) else x for x in results]

    halves = [jax.ShapeDtypeStruct((*x.shape, 2), jnp.uint32) if _wide(x) else x for x in outs]
    words = [jax.lax.bitcast_convert_type(x, jnp.uint32) if _wide(x) else x for x in arrays]
    results = jax.pure_callback(run, halves, *words, vmap_method="sequential")
    return [
        jax.lax.bitcast_convert_type(x, out.dtype) if _wide(out) else x for x, out in zip(results, outs, strict=True)
    ]


def _wide(x) -> bool:
    """Whether `x` must cross to the host as words: a callback's thread does not know of `jax.enable_x64`."""
    return jnp.dtype(x.dtype).itemsize == 8


def _whole(x, like):
    return _contiguous(x).view(like.dtype).reshape(like.shape) if _wide(like) else _contiguous(x)


def _contiguous(x):
    x = np.asarray(x)
    return np.ascontiguousarray(x).reshape(x.shape)


def _poisoned(out):
    """An output that shows an element the kernel did not write."""
    return np.full(out.shape, np.nan if jnp.issubdtype(out.dtype, jnp.floating) else 0, out.dtype)


class Plain:
    """Plain JAX: the recurrence solved by `by(a, b, init, axis, reverse)`, or composed by `prefix(a, b, axis, reverse)`."""

    def __init__(self, by, prefix):
        self._by, self._prefix = by, prefix

    def run(self, walk: Walk, operands, axis: int, dtypes):
        """The outputs of a walk over time that is whole."""
        return evaluate(walk, operands, axis, dtypes, lambda a, b, init, *how: (self._by(a, b, init, *how), init))

    def leave(self, walk: Walk, operands, axis: int):
        """(the map (a, b) from the state that enters a shard to the one that leaves it, what `enter` needs again)."""
        a, b = step_arrays(walk, operands, axis)
        if walk.sent:
            a, b = without_first(a, b, axis, walk.reverse)
        maps = self._prefix(a, b, axis, walk.reverse)
        last = 0 if walk.reverse else maps[0].shape[axis] - 1
        return [jax.lax.index_in_dim(x, last, axis) for x in maps], list(maps)

    def enter(self, walk: Walk, operands, axis: int, dtypes, maps, entry, stepped):
        """The outputs of a shard which `entry` enters."""
        return evaluate(walk, operands, axis, dtypes, lambda *_: (affine(maps[0], stepped, maps[1]), entry))


IMPLEMENTATIONS: dict[str, ByKernels | Plain] = {
    "triton": ByKernels(_on_gpu),
    "associative_scan": Plain(by_associative_scan, associative_prefix),
    "scan": Plain(by_scan, scan_prefix),
    "interpret": ByKernels(_on_host),
}


def empty(walk: Walk, operands, axis: int, dtypes):
    """The outputs where there is nothing to scan: no elements, or sums of none."""
    return [jnp.zeros(out.shape, out.dtype) for out in outputs(walk, operands, axis, dtypes)]


@functools.cache
def usable_on_gpu() -> bool:
    """Whether jax-triton can be used; warns once where it cannot."""
    reason = _jax_triton.why_not()
    if reason:
        import warnings

        warnings.warn(
            f"rltriton_jax falls back to lax.associative_scan on this GPU, since jax-triton is not usable ({reason}). "
            f"Install it with: {install('cuda13')}",
            stacklevel=2,
        )
    return reason is None
