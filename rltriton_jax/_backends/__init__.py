"""The ways to run a walk: one function each, of one signature."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .._walk import SUM, Walk, accumulator, batch_shape, out_shape
from . import _jax_triton
from ._plain import affine as affine
from ._plain import by_associative_scan, by_scan
from ._plain import evaluate as evaluate
from ._plain import step_arrays as step_arrays
from ._tiles import tile_for
from ._view import view


def outputs(walk: Walk, avals, axis: int, dtypes) -> list[jax.ShapeDtypeStruct]:
    """The shapes and types of a walk's outputs."""
    full = batch_shape(walk, [x.shape for x in avals], axis)
    kinds = walk.all_kinds
    return [jax.ShapeDtypeStruct(out_shape(k, full, axis), d) for k, d in zip(kinds, dtypes, strict=True)]


def _run(call):
    """An implementation by kernels, each run by `call(function, arrays, outs, grid, warps)`."""

    def implementation(walk: Walk, operands, axis: int, dtypes):
        from ._kernel import build

        types = tuple(jnp.dtype(x.dtype) for x in operands)
        seen = view(walk, [tuple(x.shape) for x in operands], axis, types)
        kernel = build(walk, types, seen, tile_for(seen))
        segments = kernel.tile.segments
        outs = outputs(walk, operands, axis, dtypes)
        if segments > 1:
            outs = [
                jax.ShapeDtypeStruct((segments, *out.shape), out.dtype) if kind == SUM else out
                for kind, out in zip(walk.all_kinds, outs, strict=True)
            ]

        def launch(which, more, outs):
            arrays = [operands[k] for k in which.operands]
            return list(call(which.function, [*arrays, *more], outs, kernel.grid, kernel.tile.warps))

        extra = [last_live(walk, operands, axis, kernel)] if kernel.follows_mask else []
        if kernel.reduce is not None:
            map_ = jax.ShapeDtypeStruct((segments, seen.columns), accumulator(walk, [x.dtype for x in operands]))
            extra += launch(kernel.reduce, extra, [map_, map_])
        results = launch(kernel.scan, extra, outs)
        if segments > 1:
            results = [jnp.sum(x, 0) if kind == SUM else x for kind, x in zip(walk.all_kinds, results, strict=True)]
        return results

    return implementation


def last_live(walk: Walk, operands, axis: int, kernel):
    """For each segment the position of the last live step before it, -1 where there is none: [segments, columns]."""
    full = batch_shape(walk, [x.shape for x in operands], axis)
    mask = jnp.broadcast_to(operands[walk.names.index(walk.mask)] != 0, full)
    live = jnp.moveaxis(mask, axis, 0).reshape(full[axis], -1)
    t = jnp.arange(full[axis], dtype=jnp.int32 if full[axis] < 2**31 else jnp.int64)
    position = jnp.where(live, (kernel.top - t if walk.reverse else t)[:, None], -1)
    if walk.reverse:
        position = position[::-1]
    segments, length = kernel.tile.segments, kernel.chunks * kernel.tile.runs * kernel.tile.steps
    before = kernel.top + 1 - full[axis] if walk.reverse else 0
    after = segments * length - before - full[axis]
    position = jnp.pad(position, ((before, after), (0, 0)), constant_values=-1).reshape(segments, length, -1)
    latest = jax.lax.cummax(jnp.max(position, axis=1), axis=0)
    return jnp.concatenate([jnp.full_like(latest[:1], -1), latest[:-1]])


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


def _plain(linear):
    return lambda walk, operands, axis, dtypes: evaluate(walk, operands, axis, dtypes, linear)


IMPLEMENTATIONS = {
    "triton": _run(_on_gpu),
    "associative_scan": _plain(by_associative_scan),
    "scan": _plain(by_scan),
    "interpret": _run(_on_host),
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
            'Install it with: pip install "rltriton-jax[cuda13]"',
            stacklevel=2,
        )
    return reason is None
