"""The JAX primitive that runs a walk: batching without a transpose, lowering by platform, gradients of every order."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _backends
from ._adjoint import Adjoint
from ._backends import IMPLEMENTATIONS
from ._walk import EDGE, LINEAR, SUM, Walk, accumulator, batch_shape

walk_p = Primitive("rltriton_walk")
walk_p.multiple_results = True


def run(walk: Walk, operands, axis: int, dtypes, implementation: str | None):
    """The outputs of `walk`, of types `dtypes`."""
    return walk_p.bind(*operands, walk=walk, axis=axis, dtypes=tuple(dtypes), implementation=implementation)


@functools.partial(jax.jit, static_argnames=("walk", "axis", "dtypes", "implementation"))
def _compiled(operands, **params):
    return walk_p.bind(*operands, **params)


@walk_p.def_impl
def _eager(*operands, **params):
    with jax.disable_jit(False):
        return _compiled(operands, **params)


@walk_p.def_abstract_eval
def _shapes(*avals, walk, axis, dtypes, implementation):
    return [jax.core.ShapedArray(out.shape, out.dtype) for out in _backends.outputs(walk, avals, axis, dtypes)]


def _lower(gpu: bool):
    def on_platform(*operands, walk, axis, dtypes, implementation):
        if 0 in batch_shape(walk, [x.shape for x in operands], axis):
            return _backends.empty(walk, operands, axis, dtypes)
        if implementation is None:
            implementation = "triton" if gpu and _backends.usable_on_gpu() else "associative_scan"
        elif implementation == "triton" and not gpu:
            raise ValueError(
                "implementation='triton' needs an NVIDIA or AMD GPU, and this is being compiled for another platform; "
                "pass implementation='interpret' to run the Triton kernels on the CPU, or None to let the platform "
                "choose"
            )
        elif implementation == "triton" and not _backends.usable_on_gpu():
            raise ValueError(f"implementation='triton' cannot run: {_backends._jax_triton.why_not()}")
        return IMPLEMENTATIONS[implementation](walk, operands, axis, dtypes)

    return mlir.lower_fun(on_platform, multiple_results=True)


mlir.register_lowering(walk_p, _lower(gpu=False))
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(walk_p, _lower(gpu=True), platform=_platform)


def _batch(operands, dims, *, walk, axis, dtypes, implementation):
    """A batch axis stays where the largest batched operand has it; what is not batched gets an axis of size 1 there."""
    batched = [(x.size, d) for x, d in zip(operands, dims, strict=True) if d is not None]
    place = max(batched)[1]
    moved = [
        jnp.expand_dims(x, place) if d is None else jnp.moveaxis(x, d, place)
        for x, d in zip(operands, dims, strict=True)
    ]
    outs = run(walk, moved, axis + (place <= axis), dtypes, implementation)
    return outs, [place] * len(outs)


batching.primitive_batchers[walk_p] = _batch


def linear(a, b, init, axis: int, reverse: bool, implementation: str | None = None):
    """x[t] = a[t] x[next] + b[t] over whole arrays, by the primitive itself, so that it differentiates again."""
    return run(LINEAR[reverse], (a, b, init), axis, (a.dtype,), implementation)[0]


def _jvp(primals, tangents, *, walk, axis, dtypes, implementation):
    """Any walk is pointwise work around the linear one, whose tangent is linear again."""
    outs = run(walk, primals, axis, dtypes, implementation)
    live = [
        i
        for i, t in enumerate(tangents)
        if not isinstance(t, ad.Zero) and jnp.issubdtype(primals[i].dtype, jnp.floating)
    ]
    if walk in LINEAR.values():
        tangent = _linear_tangent(primals, tangents, live, outs[0], walk, axis, implementation)
        return outs, [tangent]

    def rebuilt(values):
        full = list(primals)
        for i, value in zip(live, values, strict=True):
            full[i] = value
        return _backends.evaluate(walk, full, axis, dtypes, functools.partial(linear, implementation=implementation))

    _, out_tangents = jax.jvp(rebuilt, ([primals[i] for i in live],), ([tangents[i] for i in live],))
    return outs, out_tangents


def _linear_tangent(primals, tangents, live, x, walk, axis, implementation):
    a, b, init = primals
    dtype, shape = x.dtype, x.shape
    db, dinit = (tangents[i] if i in live else jnp.zeros_like(primals[i]) for i in (1, 2))
    if 0 in live:
        rows = [slice(None)] * x.ndim
        rows[axis] = slice(1, None) if walk.reverse else slice(None, -1)
        edge = jnp.broadcast_to(init, (*shape[:axis], 1, *shape[axis + 1 :])).astype(dtype)
        carry = jnp.concatenate([x[tuple(rows)], edge] if walk.reverse else [edge, x[tuple(rows)]], axis)
        carry = jnp.where((a == 0) & ~jnp.isfinite(carry), 0, carry)  # behind a cut
        db = db + tangents[0] * carry
    db = jnp.broadcast_to(db, shape).astype(dtype)
    dinit = dinit.astype(dtype)
    return run(walk, (a, db, dinit), axis, (dtype,), implementation)[0]


ad.primitive_jvps[walk_p] = _jvp


def _transpose(cotangents, *operands, walk, axis, dtypes, implementation):
    """The linear walk is linear in its inputs and its initial state: its transpose is its adjoint."""
    wanted = tuple(n for n, x in zip(walk.names, operands, strict=True) if ad.is_undefined_primal(x))
    if isinstance(cotangents[0], ad.Zero):
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    if walk not in LINEAR.values() or "coefficient" in wanted:
        raise NotImplementedError(f"transpose of {walk} by {wanted}")
    known = [jnp.zeros(x.aval.shape, x.aval.dtype) if ad.is_undefined_primal(x) else x for x in operands]
    pulled = dict(zip(wanted, adjoint(walk, known, axis, wanted, (0,), cotangents, {}, implementation), strict=True))
    return [pulled.get(n) for n in walk.names]


ad.primitive_transposes[walk_p] = _transpose


def adjoint(walk, operands, axis, wanted, given, cotangents, kept: dict[str, Any], implementation):
    """The cotangents of the `wanted` operands, in their own shapes and types."""
    mirrored = Adjoint.of(walk, wanted, given, tuple(kept))
    full = batch_shape(walk, [x.shape for x in operands], axis)
    by_name = dict(zip(walk.names, operands, strict=True))
    wide = accumulator(walk, [x.dtype for x in operands])

    def reduced(name):
        return [
            i for i, (n, m) in enumerate(zip(by_name[name].shape, full, strict=True)) if i != axis and n == 1 and m != 1
        ]

    kinds = dict(zip(wanted, mirrored.kinds, strict=True))
    dtypes = [wide if reduced(n) or kinds[n] in (SUM, EDGE) else by_name[n].dtype for n in wanted]
    cts = [cotangents[i] for i in given]
    outs = run(mirrored, (*operands, *kept.values(), *cts), axis, dtypes, implementation)
    return [
        jnp.sum(out, reduced(n), keepdims=True).astype(by_name[n].dtype) if reduced(n) else out.astype(by_name[n].dtype)
        for n, out in zip(wanted, outs, strict=True)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def solve(walk: Walk, axis: int, dtypes, implementation: str | None, operands):
    """The outputs of `walk`, differentiable by its adjoint: one kernel forward, one backward."""
    return run(walk, operands, axis, dtypes, implementation)


@functools.lru_cache(maxsize=512)
def _to_keep(walk: Walk, wanted: tuple[str, ...], dtype) -> tuple[str, ...]:
    """What the adjoint reads that no operand holds."""
    from ._backends._kernel import printed

    possible = Adjoint.may_keep(walk)
    full = Adjoint.of(walk, wanted, tuple(range(len(walk.kinds))), possible)
    return tuple(name for name in possible if name in printed(full, dtype).reads)


def _forward(walk, axis, dtypes, implementation, operands):
    perturbed = tuple(
        name
        for name, x in zip(walk.names, operands, strict=True)
        if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating) and name not in walk.flags
    )
    values = tuple(x.value for x in operands)
    wide = accumulator(walk, [x.dtype for x in values])
    keep = _to_keep(walk, perturbed, wide) if perturbed else ()
    own = getattr(walk, "state_out", None)
    reuse = "x" in keep and own is not None and not walk.skips
    extra = tuple(name for name in keep if not (name == "x" and reuse))
    saving = walk.saving(extra)
    outs = run(saving, values, axis, (*dtypes, *(wide for _ in extra)), implementation)
    n = len(walk.kinds)
    kept = dict(zip(extra, outs[n:], strict=True))
    if reuse:
        kept["x"] = outs[own]
    return outs[:n], (values, {name: kept[name] for name in keep}, _Static(perturbed))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """Names carried in a residual."""

    names: tuple[str, ...]


def _backward(walk, axis, dtypes, implementation, residuals, cotangents):
    operands, kept, static = residuals
    wanted = static.names
    given = tuple(i for i, ct in enumerate(cotangents) if not isinstance(ct, SymbolicZero))
    if not given or not wanted:
        return (tuple(None for _ in operands),)
    pulled = adjoint(walk, operands, axis, wanted, given, cotangents, kept, implementation)
    by_name = dict(zip(wanted, pulled, strict=True))
    return (tuple(by_name.get(name) for name in walk.names),)


solve.defvjp(_forward, _backward, symbolic_zeros=True)
