"""How a walk is split over devices where its operands are sharded: columns stay where they are, time is made whole."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ._walk import batch_shape, out_shape


def nowhere():
    """A context in which no mesh is known."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def _names(entry) -> tuple[str, ...]:
    """The mesh axes of one entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _spec(columns, shape, full) -> PartitionSpec:
    """The spec of an array of `shape`, where `columns` holds the mesh axes of each full axis."""
    rows = [columns[i] if n == full[i] else () for i, n in enumerate(shape)]
    return PartitionSpec(*(names or None for names in rows))


# Types


def aligned(walk, operands, axis):
    """The operands, varying over the same manual mesh axes, and sharded alike where the mesh is explicit."""
    types = [jax.typeof(x) for x in operands]
    meshes = [t.sharding.mesh for t in types if not t.sharding.mesh.empty]
    if not meshes:
        return operands
    varying = frozenset().union(*(t.manual_axis_type.varying for t in types))
    missing = [tuple(sorted(varying - t.manual_axis_type.varying)) for t in types]
    operands = [jax.lax.pcast(x, m, to="varying") if m else x for x, m in zip(operands, missing, strict=True)]
    if not meshes[0].explicit_axes:
        return operands
    full = batch_shape(walk, [x.shape for x in operands], axis)
    columns: list[tuple[str, ...]] = [()] * len(full)
    first: dict[str, tuple[str, int]] = {}
    for name, t in zip(walk.names, types, strict=True):
        for i, entry in enumerate(t.sharding.spec):
            if entry is None or t.shape[i] != full[i]:
                continue
            names = _names(entry)
            clash = [first[n] for n in names if n in first and first[n][1] != i]
            clash += [place for place in first.values() if place[1] == i and columns[i] != names]
            if clash:
                other, j = clash[0]
                raise ValueError(
                    f"rltriton_jax: {name} is sharded over {names} along axis {i}, but {other} over {columns[j]} along "
                    f"axis {j}; pass one of them through jax.sharding.reshard"
                )
            columns[i] = names
            first.update({n: (name, i) for n in names if n not in first})
    wanted = [_spec(columns, x.shape, full) for x in operands]
    return [
        x if t.sharding.mesh.empty or t.sharding.spec == spec else jax.sharding.reshard(x, t.sharding.update(spec=spec))
        for x, t, spec in zip(operands, types, wanted, strict=True)
    ]


def typed(outs, avals, full):
    """The types of outputs: of aligned operands, they keep the mesh, the sharding and what varies over it."""
    like = next((a for a in avals if not a.sharding.mesh.empty), avals[0])
    if like.sharding.mesh.empty:
        return [ShapedArray(out.shape, out.dtype) for out in outs]
    columns = [
        next((_names(a.sharding.spec[i]) for a in avals if a.shape[i] == n and a.sharding.spec[i] is not None), ())
        for i, n in enumerate(full)
    ]
    return [
        like.update(
            shape=out.shape,
            dtype=out.dtype,
            weak_type=False,
            sharding=like.sharding.update(spec=_spec(columns, out.shape, full)),
        )
        for out in outs
    ]


# Lowering


@functools.cache
def devices_wanted():
    """A jaxpr which, among the parameters of an equation, makes `jax.jit` lower the equation for known devices."""
    marker = custom_partitioning(lambda x: x)
    marker.def_partition(None, sharding_rule="i -> i")
    with nowhere():
        return jax.make_jaxpr(marker)(np.zeros(1, np.float32))


def lower(ctx, operands, body, walk, axis, how: str | None):
    """Lowers `body`, a function of arrays that sees no mesh, over devices: "split", or "whole" on one of them."""
    ctx = ctx.replace(avals_in=[ShapedArray(a.shape, a.dtype) for a in ctx.avals_in])
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None) or ()
    several = len(devices) > 1 and not ctx.module_context.lowering_parameters.for_export  # a rule is not exported
    by_rule = getattr(jax.config, "jax_use_shardy_partitioner", True)
    run = apart(body)
    if several and how == "split" and by_rule:
        run = apart(_partitioned(run, walk, [a.shape for a in ctx.avals_in], axis))
    elif several and how == "whole":
        run = _spread(run, devices)
    return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


def apart(function):
    """`function`, which sees no mesh."""

    def within(*operands):
        with nowhere():
            return function(*operands)

    return within


def _spread(function, devices):
    """`function`, whose results would otherwise stay on the device that runs it."""
    everywhere = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec())
    return lambda *operands: [jax.lax.with_sharding_constraint(out, everywhere) for out in function(*operands)]


def _partitioned(body, walk, shapes, axis):
    """`body`, with the rule by which XLA splits it."""
    full = batch_shape(walk, shapes, axis)
    outs = [out_shape(kind, full, axis) for kind in walk.all_kinds]

    def partition(mesh, args, results):
        columns = _columns(mesh, (*results, *args), full, axis)
        of_outs, of_operands = (
            [NamedSharding(mesh, _spec(columns, shape, full)) for shape in group] for group in (outs, shapes)
        )
        return mesh, body, of_outs, tuple(of_operands)

    split = custom_partitioning(body)
    split.def_partition(partition, sharding_rule=_rule(shapes, outs, full))
    return split


def _columns(mesh, arrays, full, axis):
    """The mesh axes of each full axis of a walk whose time is whole."""
    columns: list[tuple[str, ...]] = [()] * len(full)
    free = dict(mesh.shape)

    def take(i, names):
        for name in names:
            if name in free and full[i] % (math.prod(mesh.shape[n] for n in columns[i]) * free[name]) == 0:
                columns[i] = (*columns[i], name)
                del free[name]

    for x in arrays:
        for i, entry in enumerate(x.sharding.spec):
            if i != axis and x.shape[i] == full[i] and not columns[i]:
                take(i, _names(entry))
    # what splits time shall split columns instead: an all-to-all moves less than a gather, and keeps memory small
    of_time = [name for x in arrays for name in _names(x.sharding.spec[axis])]
    for i in sorted((i for i in range(len(full)) if i != axis), key=lambda i: -full[i]):
        take(i, of_time)
    return columns


def _rule(shapes, outs, full) -> str:
    """The factors of every axis: a full one is the same for all arrays, any other is its own."""

    def factors(k, shape):
        return " ".join(f"full{i}" if n == full[i] else f"own{k}x{i}" for i, n in enumerate(shape))

    described = [factors(k, shape) for k, shape in enumerate((*shapes, *outs))]
    return f"{', '.join(described[: len(shapes)])} -> {', '.join(described[len(shapes) :])}"
