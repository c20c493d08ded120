"""The ways to run a walk: one function each, of one signature."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .._walk import Walk, batch_shape, out_shape
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


def _kernel_of(walk, operands, axis):
    from ._kernel import build

    seen = view(walk, [tuple(x.shape) for x in operands], axis)
    return build(walk, tuple(jnp.dtype(x.dtype) for x in operands), seen, tile_for(seen))


def triton(walk: Walk, operands, axis: int, dtypes):
    """The Triton kernels, on the GPU."""
    kernel = _kernel_of(walk, operands, axis)
    outs = outputs(walk, operands, axis, dtypes)
    results = _jax_triton.call(
        kernel.function, [operands[k] for k in kernel.operands], outs, grid=kernel.grid, warps=kernel.warps, name="scan"
    )
    return list(results)


def interpret(walk: Walk, operands, axis: int, dtypes):
    """The Triton kernels, run by Triton's interpreter on the CPU."""
    kernel = _kernel_of(walk, operands, axis)
    outs = outputs(walk, operands, axis, dtypes)

    def on_host(*arrays):
        from ._interpreter import run

        results = [_poisoned(out) for out in outs]
        run(kernel.function, kernel.grid, [*map(_contiguous, arrays), *results])
        return results

    read = [operands[k] for k in kernel.operands]
    return list(jax.pure_callback(on_host, outs, *read, vmap_method="sequential"))


def _contiguous(x):
    x = np.asarray(x)
    return np.ascontiguousarray(x).reshape(x.shape)


def _poisoned(out):
    """An output that shows an element the kernel did not write."""
    return np.full(out.shape, np.nan if jnp.issubdtype(out.dtype, jnp.floating) else 0, out.dtype)


def _plain(linear):
    return lambda walk, operands, axis, dtypes: evaluate(walk, operands, axis, dtypes, linear)


IMPLEMENTATIONS = {
    "triton": triton,
    "associative_scan": _plain(by_associative_scan),
    "scan": _plain(by_scan),
    "interpret": interpret,
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
