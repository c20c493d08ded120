"""The tangent of a walk: a walk of the same direction, derived from the formula, whose transpose is the adjoint."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ._adjoint import edge_of_state, flags_kept, full
from ._walk import Rows, Walk


@dataclasses.dataclass(frozen=True)
class Tangent(Walk):
    """Tangents of the outputs of `base`, linear in those of its `moved` operands: the operands d_NAME.

    dx[t] = a dx[near] + (da x[near] + db), where da and db follow from `base.step` by `jax.jvp`.
    """

    _: dataclasses.KW_ONLY
    base: Walk
    moved: tuple[str, ...]

    @classmethod
    def of(cls, base: Walk, moved: tuple[str, ...], kept: tuple[str, ...]) -> Tangent:
        """`kept` names what the forward pass saved beside operands."""

        def of_moved(names):
            return tuple(f"d_{name}" for name in names if name in moved)

        edges = tuple((f"d_{name}", f"d_{edge}") for name, edge in base.edges if name in moved and edge in moved)
        return cls(
            names=(*base.names, *kept, *of_moved(moved)),
            reverse=base.reverse,
            flags=(*base.flags, *flags_kept(base, kept)),
            long=(*base.long, *of_moved(base.long)),
            fixed=(*base.fixed, *("incoming" for name in kept if name == "incoming"), *of_moved(base.fixed)),
            edges=(*base.edges, *edge_of_state(base, kept), *edges),
            init=f"d_{base.init}" if base.init in moved else None,
            mask=base.mask,
            mask_mode=base.mask_mode,
            over=base.over,
            sent=tuple((f"d_{row}", f"d_{edge}") for row, edge in base.sent if row in moved),
            function=base.function,
            base=base,
            moved=moved,
        )

    @property
    def kinds(self):
        return self.base.kinds

    def _x(self, rows, like):
        """The state of the base; where nothing reads it, it was not kept, and anything will do."""
        return rows.x if "x" in self.names else jnp.zeros_like(like)

    def _along(self, function, now, near, states=(), tangents=()):
        """The derivative of function(now, near, *states) along the tangents of the rows and of the states."""

        def moved(rows):
            return {name: getattr(rows, name) for name in self.moved}, {
                name: getattr(rows, f"d_{name}") for name in self.moved
            }

        def at(here, there, *states):
            def replaced(rows, values):
                return Rows(lambda name: values[name] if name in values else getattr(rows, name))

            return function(replaced(now, here), replaced(near, there), *states)

        (here, d_here), (there, d_there) = moved(now), moved(near)
        return jax.jvp(at, (here, there, *states), (d_here, d_there, *tangents))

    def step(self, now, near, far, beside):
        like = getattr(now, f"d_{self.moved[0]}")

        def base_step(now, near):
            return tuple(full(term, like) for term in self.base.step(now, near, None, beside))

        (a, _), (da, db) = self._along(base_step, now, near)
        if "x" not in self.names:
            return a, db
        carry = near.x
        return a, db + da * jnp.where((a == 0) & ~jnp.isfinite(carry), 0.0, carry)  # behind a cut it is not read

    def read(self, x, carry, now, near, far, beside):
        def base_read(now, near, x, carry):
            return tuple(full(out, x) for out in self.base.read(x, carry, now, near, None, beside))

        behind = self._x(near, carry)
        if "x" in self.names:
            a = full(self.base.step(now, near, None, beside)[0], x)
            behind = jnp.where((a == 0) & ~jnp.isfinite(behind), 0.0, behind)
        return self._along(base_read, now, near, (self._x(now, x), behind), (x, carry))[1]
