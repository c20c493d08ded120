"""A call of a public function whose arguments were checked: the walk over them, run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._arguments import Arguments
from ._backends import step_arrays
from ._sharding import joined, solve_over_time
from ._shards import resolved
from ._solve import solve
from ._walk import Formula

Array = jax.Array


class Call(Arguments):
    """Arguments that can be solved."""

    def out_dtype(self) -> np.dtype:
        """The promotion of the floating arrays that carry values."""
        floating = [x.dtype for x in self.carriers if jnp.issubdtype(x.dtype, jnp.floating)]
        with jax.numpy_dtype_promotion("standard"):
            out = floating[0] if floating else jnp.zeros((), float).dtype
            for dtype in floating[1:]:
                try:
                    out = jnp.promote_types(out, dtype)
                except ValueError as error:  # jax.dtypes.TypePromotionError, which old releases keep private
                    raise TypeError(
                        f"{self.function}: got arrays of {out} and of {dtype}, which have no type in common; convert one"
                    ) from error
        return jnp.dtype(out)

    def _walk(self, kind: type[Formula], mask_mode: str, **config: Any) -> Formula:
        masked = "mask" in self.operands
        return kind(
            names=tuple(self.operands),
            flags=tuple(self.flags),
            long=tuple(self.long),
            fixed=tuple(self.fixed),
            edges=tuple(self.edges),
            mask="mask" if masked else None,
            mask_mode=mask_mode if masked else "skip",
            function=self.function,
            **config,
        )

    def _typed(self) -> tuple[Array, ...]:
        """The operands; Python numbers take the type to compute in, and integers where a float64 sum is promised."""
        wide = jnp.float64 if self.out_dtype() == jnp.float64 else jnp.float32

        def typed(name: str, x: Array) -> Array:
            whole = wide == jnp.float64 and name not in self.flags and not jnp.issubdtype(x.dtype, jnp.floating)
            return x.astype(wide) if whole or jax.typeof(x).weak_type else x

        return tuple(typed(name, x) for name, x in self.operands.items())

    def run(
        self,
        kind: type[Formula],
        implementation: str | None,
        recurrence: str,
        readout: str,
        mask_mode: str = "skip",
        *,
        outs: int = 1,
        **config: Any,
    ) -> list[Array]:
        """The outputs of a walk of class `kind` over the operands."""
        dtype, operands = self.out_dtype(), self._typed()
        walk = self._walk(kind, mask_mode, recurrence=recurrence, readout=readout, outs=outs, **config)
        if 0 in self.shape:
            return [jnp.zeros(self.shape, dtype)] * outs
        if self.axis_name is not None:
            self._refuse_longer()
            return solve_over_time(walk, self.axis, (dtype,) * outs, implementation, operands, self.axis_name)
        return solve(walk, self.axis, (dtype,) * outs, implementation, operands)

    def _refuse_longer(self) -> None:
        """T + 1 rows in every shard are not T + 1 rows in all."""
        for operand, name, past in (
            ("value", "values", "bootstrap_value"),
            ("start", "episode_starts", "next_episode_start, if the function takes it"),
        ):
            if operand in self.long:
                raise ValueError(
                    f"{self.function}: {name} has T + 1 rows, which cannot be sharded over axis_name="
                    f"{self.axis_name!r}; pass its first T rows, and {past}"
                )

    def coefficients(self, kind: type[Formula], recurrence: str, unread: int = 0) -> tuple[Array, Array]:
        """The (a, b) of every step, as arrays. Nobody reads those of the first `unread` steps, so they read nothing."""
        walk, operands = self._walk(kind, "skip", recurrence=recurrence), self._typed()
        if self.axis_name is not None:
            walk, operands = resolved(*joined(walk, self.axis, operands, self.axis_name))
            unread = 0  # which are those of the first shard
        return step_arrays(walk, operands, self.axis, unread)
