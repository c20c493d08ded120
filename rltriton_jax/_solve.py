"""The JAX primitive that runs a walk: batching without a transpose, lowering by platform, gradients of every order."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval

from . import _backends, _partition, _shards
from ._adjoint import Adjoint
from ._backends import IMPLEMENTATIONS
from ._tangent import Tangent
from ._walk import EDGE, LINEAR, SUM, Walk, accumulator, batch_shape

walk_p = Primitive("rltriton_walk")
walk_p.multiple_results = True
PLAIN = ("associative_scan", "scan")


def run(walk: Walk, operands, axis: int, dtypes, implementation: str | None):
    """The outputs of `walk`, of types `dtypes`, which also name those that are not shown."""
    operands = _partition.aligned(walk, operands, axis)
    # XLA splits its own operations over devices by itself; what else runs there is told how, and for which
    devices = None if implementation in PLAIN else _partition.devices_wanted()
    params = dict(walk=walk, axis=axis, dtypes=tuple(dtypes), implementation=implementation, devices=devices)
    return walk_p.bind(*operands, **params)


@functools.partial(jax.jit, static_argnames=("walk", "axis", "dtypes", "implementation", "devices"))
def _compiled(operands, **params):
    return walk_p.bind(*operands, **params)


@walk_p.def_impl
def _eager(*operands, **params):
    with jax.disable_jit(False):
        return _compiled(operands, **params)


@walk_p.def_abstract_eval
def _types(*avals, walk, axis, dtypes, **_):
    outs = _backends.outputs(walk, avals, axis, walk.of_shown(dtypes))
    return _partition.typed(outs, avals, batch_shape(walk, [x.shape for x in avals], axis))


def _drop(used, *rest):
    """Outputs that nobody uses are not computed, nor written."""
    eqn = rest[-1]  # since jax 0.12 behind which inputs live on
    walk, ins = eqn.params["walk"], len(eqn.invars)
    if not any(used) and not eqn.effects:
        return [False] * ins, None
    shown = walk.of_shown(range(len(eqn.params["dtypes"])))
    first_told = len(eqn.params["dtypes"]) - len(walk.told)
    keep = [use or i >= first_told for use, i in zip(used, shown, strict=True)]
    if all(keep) or not any(keep) or walk.mirrored or isinstance(walk, Tangent):
        return [True] * ins, eqn
    walk = dataclasses.replace(walk, shown=tuple(i for i, kept in zip(shown, keep, strict=True) if kept))
    outs = [v for v, kept in zip(eqn.outvars, keep, strict=True) if kept]
    return [True] * ins, eqn.replace(params={**eqn.params, "walk": walk}, outvars=outs)


partial_eval.dce_rules[walk_p] = _drop


def _tiny(shape, axis: int) -> bool:
    """Whether XLA's few kernels over whole arrays were faster than one launch of Triton, both within a graph."""
    known = all(isinstance(n, int) for n in shape)  # an exported function may have sizes yet to come
    time_is_last = all(n == 1 for n in shape[axis + 1 :])
    steps, numbers = (8, 1 << 15) if time_is_last else (16, 1 << 17)
    return known and shape[axis] <= steps and math.prod(shape) <= numbers


def _lower(gpu: bool, plain: str = "associative_scan"):
    """Lowering for a platform, where `plain` is the faster of the plain-JAX forms."""

    def chosen(implementation, tiny, function):
        if implementation is None:
            return "triton" if gpu and not tiny and _backends.usable_on_gpu() else plain
        elif implementation == "triton" and not gpu:
            raise ValueError(
                f"{function}: implementation='triton' needs an NVIDIA or AMD GPU, and this is being compiled for another "
                "platform; pass implementation='interpret' to run the Triton kernels on the CPU, or None to let the "
                "platform choose"
            )
        elif implementation == "triton" and not _backends.usable_on_gpu():
            raise ValueError(f"{function}: implementation='triton' cannot run: {_backends._jax_triton.why_not()}")
        return implementation

    def rule(ctx, *operands, walk, axis, devices, dtypes, implementation):
        walk, dtypes = walk.to_run(), walk.of_shown(dtypes)
        full = batch_shape(walk, [x.shape for x in ctx.avals_in], axis)
        if 0 in full:
            return _partition.lower(ctx, operands, lambda *x: _backends.empty(walk, x, axis, dtypes), walk, axis, None)
        how = IMPLEMENTATIONS[chosen(implementation, _tiny(full, axis), walk.function)]
        if walk.over:
            return _shards.lower(ctx, operands, how, walk, axis, dtypes)

        def body(*operands):
            return how.run(walk, operands, axis, dtypes)

        on_host = implementation == "interpret"
        return _partition.lower(ctx, operands, body, walk, axis, "whole" if on_host else "split" if devices else None)

    return rule


mlir.register_lowering(walk_p, _lower(gpu=False))
mlir.register_lowering(walk_p, _lower(gpu=False, plain="scan"), platform="cpu")  # faster there at every shape measured
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(walk_p, _lower(gpu=True), platform=_platform)


def _batch(operands, dims, *, walk, axis, dtypes, implementation, **_):
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


def linear(
    a, b, init, axis: int, reverse: bool, implementation: str | None = None, over: str | None = None,
    function: str = Walk.function,
):  # fmt: skip
    """x[t] = a[t] x[next] + b[t] over whole arrays, by the primitive itself, so that it differentiates again."""
    walk = dataclasses.replace(LINEAR[reverse], over=over, function=function)
    return run(walk, (a, b, init), axis, (a.dtype,), implementation)[0]


def _jvp(primals, tangents, *, walk, axis, dtypes, implementation, **_):
    """The tangent of a walk is a walk, whose transpose is the adjoint: in both modes one kernel each way."""
    if walk.shown is not None:
        every = dataclasses.replace(walk, shown=None)
        outs, moved = _jvp(primals, tangents, walk=every, axis=axis, dtypes=dtypes, implementation=implementation)
        return walk.of_shown(outs), walk.of_shown(moved)
    moved = {
        name: tangent
        for name, x, tangent in zip(walk.names, primals, tangents, strict=True)
        if not isinstance(tangent, ad.Zero) and jnp.issubdtype(x.dtype, jnp.floating) and name not in walk.flags
    }
    if walk.mirrored or walk.saved or walk.told or isinstance(walk, Tangent):
        return _jvp_by_parts(primals, moved, walk, axis, dtypes, implementation)
    by_name = dict(zip(walk.names, primals, strict=True))
    ends = [pair for row, edge in walk.sent for pair in ((row, edge), (edge, row))]
    for name, edge in (*ends, *walk.edges):
        if edge in moved and name not in moved:  # the tangent of the edge stands past the end of this one
            moved[name] = jnp.zeros_like(by_name[name])
    if not moved:
        outs = run(walk, primals, axis, dtypes, implementation)
        return outs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    keep = _to_keep(walk, tuple(moved), accumulator(walk, [x.dtype for x in primals]))
    outs, kept, known = _keeping(walk, primals, axis, dtypes, implementation, keep)
    tangent = Tangent.of(walk, tuple(moved), keep)
    return outs, run(tangent, (*known, *kept, *moved.values()), axis, dtypes, implementation)


def _jvp_by_parts(primals, moved, walk, axis, dtypes, implementation):
    """Any walk is pointwise work around the linear one: this serves the derivatives of derivatives."""

    by_parts = dataclasses.replace(walk, careful=True) if isinstance(walk, Adjoint) else walk

    def parts(moved):
        operands = [moved.get(name, x) for name, x in zip(walk.names, primals, strict=True)]
        alone, operands = _shards.resolved(by_parts, operands)
        known = dict(zip(walk.names, operands, strict=True))

        def by_primitive(a, b, init, axis, reverse):
            x = linear(a, b, init, axis, reverse, implementation, walk.over)
            known["incoming"] = _shards.entering(x, init, axis, reverse, walk.over) if walk.over else init
            return x, known["incoming"]

        alone, n = dataclasses.replace(alone, told=()), len(dtypes) - len(walk.told)
        outs = _backends.evaluate(alone, operands, axis, dtypes[:n], by_primitive, careful=True)
        for name in walk.told:
            if name.startswith("back_"):
                mine = outs[walk.edges_put_out[name.removeprefix("back_")]]
                known[name] = _shards.next_ones(mine, walk.reverse, walk.over)
        edge = _backends.entry_of(walk, operands, axis).shape
        return [*outs, *(jnp.broadcast_to(known[name], edge) for name in walk.told)]

    outs = run(walk, primals, axis, dtypes, implementation)
    by_name = dict(zip(walk.names, primals, strict=True))
    return outs, jax.jvp(parts, ({name: by_name[name] for name in moved},), (moved,))[1]


ad.primitive_jvps[walk_p] = _jvp


@functools.lru_cache(maxsize=512)
def _to_keep(walk: Walk, wanted: tuple[str, ...], dtype) -> tuple[str, ...]:
    """What the adjoint reads that no operand holds."""
    from ._backends._formula import printed

    possible = Adjoint.may_keep(walk)
    full = Adjoint.of(walk, _edges_for_rows(walk, wanted), tuple(range(len(walk.kinds))), possible)
    with _partition.nowhere():
        reads = printed(full, dtype).reads
    kept = tuple(name for name in possible if name in reads)
    return (*kept, "incoming") if walk.over and "x" in kept else kept


def _edges_for_rows(walk: Walk, names) -> tuple[str, ...]:
    """The names of operands, where a row that is sent is known by the edge it stands at."""
    return tuple(dict.fromkeys(dict(walk.sent).get(name, name) for name in names))


def _keeping(walk, operands, axis, dtypes, implementation, keep: tuple[str, ...]):
    """(the outputs of `walk`, what else it passed that is named in `keep`, the operands with what other shards sent)."""
    own = getattr(walk, "state_out", None)
    # an output in float16 is not the state: a sum may pass its range
    reuse = "x" in keep and own is not None and not walk.skips and dtypes[own] != jnp.float16
    extra = tuple(name for name in keep if name != "incoming" and not (name == "x" and reuse))
    told = (*(edge for _, edge in walk.sent), *(name for name in keep if name == "incoming"))
    wide = accumulator(walk, [x.dtype for x in operands])
    types = [jnp.dtype(bool) if name in walk.flags else wide for name in (*extra, *told)]
    outs = run(walk.saving(extra, told), operands, axis, (*dtypes, *types), implementation)
    n = len(walk.kinds)
    kept = dict(zip((*extra, *told), outs[n:], strict=True))
    if reuse:
        kept["x"] = outs[own]
    known = [kept[name] if name in told else x for name, x in zip(walk.names, operands, strict=True)]
    return outs[:n], [kept[name] for name in keep], known


def _transpose(cotangents, *operands, walk, axis, implementation, **_):
    """A tangent is linear in the tangents of operands, the linear walk in its inputs and its initial state."""
    sought = {n: x.aval for n, x in zip(walk.names, operands, strict=True) if ad.is_undefined_primal(x)}
    given = tuple(i for i, ct in enumerate(cotangents) if not isinstance(ct, ad.Zero))
    if isinstance(walk, Tangent):
        base, prefix = walk.base, "d_"
        known = list(operands[: len(walk.names) - len(walk.moved)])
    elif dataclasses.replace(walk, over=None) in LINEAR.values() and "coefficient" not in sought:
        base, prefix = walk, ""
        known = [jnp.zeros(x.aval.shape, x.aval.dtype) if ad.is_undefined_primal(x) else x for x in operands]
    else:
        raise NotImplementedError(f"transpose of {walk} by {tuple(sought)}")
    wanted = {name.removeprefix(prefix): aval for name, aval in sought.items()}
    pulled = {}
    if given:
        pulled = _pull(base, known, walk.names, wanted, axis, {i: cotangents[i] for i in given}, implementation)
    return [
        (pulled[n.removeprefix(prefix)] if given else ad.Zero(x.aval)) if ad.is_undefined_primal(x) else None
        for n, x in zip(walk.names, operands, strict=True)
    ]


ad.primitive_transposes[walk_p] = _transpose


def _pull(base, known, names, wanted, axis, cotangents, implementation):
    """The cotangents of the `wanted` operands of `base`, with the shapes and types of their avals."""
    kept = names[len(base.names) : len(known)]
    sought = _edges_for_rows(base, wanted)
    sent = {row: f"back_{edge}" for row, edge in base.sent if row in wanted}
    mirrored = dataclasses.replace(Adjoint.of(base, sought, tuple(cotangents), kept), told=tuple(sent.values()))
    operands = (*known, *cotangents.values())
    full = batch_shape(mirrored, [x.shape for x in operands], axis)
    wide = accumulator(mirrored, [x.dtype for x in operands])
    sums = {
        name: [i for i, n in enumerate(aval.shape) if i != axis and n == 1 != full[i]] for name, aval in wanted.items()
    }
    dtypes = [
        wide if kind in (SUM, EDGE) or sums[name] else wanted[name].dtype
        for name, kind in zip(sought, mirrored.kinds, strict=True)
    ]
    results = run(mirrored, operands, axis, (*dtypes, *(wide for _ in sent)), implementation)
    outs = dict(zip((*sought, *sent), results, strict=True))
    for name in (base.init, *(edge for _, edge in base.sent)):
        if base.over and name in wanted:  # which only the shard that is walked first has read
            outs[name] = jnp.where(_shards.walked_first(base.reverse, base.over), outs[name], 0)
    return {
        name: (jnp.sum(outs[name], over, keepdims=True) if over else outs[name]).astype(wanted[name].dtype)
        for name, over in sums.items()
    }


def solve(walk: Walk, axis: int, dtypes, implementation: str | None, operands):
    """The outputs of `walk`, to be differentiated in either mode, any number of times."""
    return run(walk, operands, axis, dtypes, implementation)
