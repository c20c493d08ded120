"""A walk's formula as text: the bodies of its device functions, and what each of them reads."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._walk import Beside, Rows, Walk
from ._text import body_of

PLACES = ("now", "near", "far")


class Formula(NamedTuple):
    """The bodies of a walk's device functions, what each reads, and what the scan loop reads in all."""

    bodies: dict[str, str]
    used: dict[str, frozenset[str]]
    rows: frozenset[str]  # e.g. "now_reward", "near_value"
    reads: frozenset[str]  # names of operands


@functools.lru_cache(maxsize=512)
def printed(walk: Walk, dtype: Any) -> Formula:
    """The device functions of a walk that computes in `dtype`."""
    names = walk.names
    row = [jax.ShapeDtypeStruct((), jnp.bool_ if name in walk.flags else dtype) for name in names]
    flag, number = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((), dtype)
    labels = [f"{place}_{name}" for place in PLACES for name in names] + ["has_near", "has_far"]
    avals = (*row, *row, *row, flag, flag)

    def rows(values, here):
        n = len(names)
        now, near, far = (
            Rows(dict(zip(names, values[i * n : (i + 1) * n], strict=True)).__getitem__) for i in range(3)
        )
        return now, near, far, Beside(near=values[-2], far=values[-1] if here else False, here=here)

    bodies, used = {}, {}
    for prefix, here in (("", True), ("past_", False)):
        if not here and not walk.visits_past_end:
            continue

        def step(*values, here=here):
            return walk.coefficients(*rows(values, here))

        def read(x, carry, *values, here=here):
            return walk.outputs(x, carry, *rows(values, here))

        bodies[f"{prefix}step"], used[f"{prefix}step"] = body_of(step, avals, labels)
        bodies[f"{prefix}read"], used[f"{prefix}read"] = body_of(
            read, (number, number, *avals), ["x", "carry", *labels]
        )
    looped = used["step"] | used["read"]
    if walk.mask is not None:
        looped = looped | {f"now_{walk.mask}"}
    reads = {
        name for label in looped.union(*used.values()) for name in names if label in {f"{p}_{name}" for p in PLACES}
    }
    return Formula(bodies, used, looped, frozenset(reads | ({walk.init} if walk.init else set())))
