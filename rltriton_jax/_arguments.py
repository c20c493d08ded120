"""Checks the arguments of the public functions, and turns them into the operands of a walk."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._backends import IMPLEMENTATIONS
from ._host import to_array

Array = jax.Array


def _described(x: Array) -> str:
    return f"shape {tuple(x.shape)}"


@dataclasses.dataclass
class Arguments:
    """One call of a public function: the arguments checked so far, as operands by name."""

    function: str
    data_name: str
    shape: tuple[int, ...]
    axis: int
    axis_name: str | None = None
    operands: dict[str, Array] = dataclasses.field(default_factory=dict)
    flags: list[str] = dataclasses.field(default_factory=list)
    long: list[str] = dataclasses.field(default_factory=list)
    fixed: list[str] = dataclasses.field(default_factory=list)
    edges: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    carriers: list[Any] = dataclasses.field(default_factory=list)

    @classmethod
    def on(
        cls,
        function: str,
        data_name: str,
        data: ArrayLike,
        time_axis: int,
        implementation: str | None,
        axis_name: str | None = None,
    ) -> Self:
        """A call whose arrays have the shape of `data`."""
        if implementation not in (None, *IMPLEMENTATIONS):
            names = ", ".join(map(repr, IMPLEMENTATIONS))
            raise ValueError(f"{function}: implementation must be None or one of {names}; got {implementation!r}")
        array = to_array(function, data_name, data)
        if array.ndim == 0:
            raise ValueError(
                f"{function}: {data_name} needs a time axis; got a scalar. Pass an array with one row per step"
            )
        if isinstance(time_axis, bool) or not isinstance(time_axis, int | np.integer):
            raise TypeError(f"{function}: time_axis must be an int; got {time_axis!r}")
        if not -array.ndim <= time_axis < array.ndim:
            raise ValueError(
                f"{function}: time_axis={time_axis} is outside of {data_name} with {_described(array)}; "
                f"pass one of {-array.ndim} to {array.ndim - 1}"
            )
        call = cls(function, data_name, tuple(array.shape), int(time_axis) % array.ndim, axis_name)
        if axis_name is not None:
            call.shards()
        return call

    def shards(self) -> int:
        """Over how many shards time goes on."""
        if self.axis_name is None:
            return 1
        if self.axis_name not in jax.sharding.get_abstract_mesh().manual_axes:
            raise ValueError(
                f"{self.function}: axis_name={self.axis_name!r} is no mesh axis here; call it inside jax.shard_map over a "
                "mesh with that axis, or drop axis_name"
            )
        return jax.lax.axis_size(self.axis_name)

    def error(self, name: str, array: Array, wanted: str) -> ValueError:
        return ValueError(
            f"{self.function}: {name} has {_described(array)}, but {self.data_name} has shape {self.shape} "
            f"with time at axis {self.axis}; pass {wanted}"
        )

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def _rows(self, n: int) -> tuple[int, ...]:
        return (*self.shape[: self.axis], n, *self.shape[self.axis + 1 :])

    @property
    def longer(self) -> tuple[int, ...]:
        return self._rows(self.shape[self.axis] + 1)

    def number(self, name: str, value: ArrayLike | None) -> Array:
        """A numeric argument as an array; bool is refused, an integer is promoted by the walk."""
        array = to_array(self.function, name, value)
        if array.dtype == bool:
            raise TypeError(f"{self.function}: {name} must be numbers; got dtype bool; pass integers or floats")
        return array

    def series(self, operand: str, name: str, value: ArrayLike | None) -> Array:
        """An argument with exactly the shape of the data."""
        array = self.number(name, value)
        if array.shape != self.shape:
            raise self.error(name, array, f"shape {self.shape}")
        self.operands[operand] = array
        self.carriers.append(array)
        return array

    def spread(self, operand: str, name: str, value: ArrayLike) -> None:
        """A scalar, or an array like the data whose axes may be 1 and whose trailing axes may be missing."""
        array = self.number(name, value)
        if array.ndim == 0:
            self._fix(operand, array.reshape((1,) * len(self.shape)))
            return
        full = array.reshape(array.shape + (1,) * (len(self.shape) - array.ndim))
        fits = array.ndim > self.axis and all(n in (1, m) for n, m in zip(array.shape, self.shape, strict=False))
        if array.ndim > len(self.shape) or not fits:
            raise self.error(
                name, array, f"a scalar or shape {self.shape}, where axes may be 1 and trailing axes missing"
            )
        self.operands[operand] = full
        if full.shape[self.axis] != self.shape[self.axis]:
            self.fixed.append(operand)

    def _fix(self, operand: str, array: Array) -> None:
        self.operands[operand] = array
        self.fixed.append(operand)

    def scalar(self, operand: str, name: str, value: ArrayLike) -> None:
        """A number that holds for every step and column."""
        array = self.number(name, value)
        if array.ndim:
            raise ValueError(f"{self.function}: {name} must be a scalar; got {_described(array)}")
        self._fix(operand, array.reshape((1,) * len(self.shape)))

    def at_edge(self, operand: str, name: str, value: ArrayLike, of: str | None) -> None:
        """A scalar or an array `[*batch]` that stands past the end of series `of`; flags may lack trailing axes."""
        flag = operand in self.flags
        array = to_array(self.function, name, value, flag=True) if flag else self.number(name, value)
        fits = array.shape == self.batch[: array.ndim] and (flag or array.ndim in (0, len(self.batch)))
        if not fits or len(self.batch) > array.ndim > 0 and array.ndim < self.axis:
            raise self.error(name, array, f"a scalar or shape {self.batch}")
        full = array.reshape(array.shape + (1,) * (len(self.batch) - array.ndim))
        self._fix(operand, jnp.expand_dims(full, self.axis))
        if of is not None:
            self.edges.append((of, operand))

    def flag(self, operand: str, name: str, value: ArrayLike, *, longer: bool = False) -> bool:
        """Flags like the data, which may lack trailing axes; True if they have T + 1 rows, where `longer` allows it."""
        array = to_array(self.function, name, value, flag=True)
        full = array.reshape(array.shape + (1,) * (len(self.shape) - array.ndim))
        allowed = [self.shape, self.longer] if longer else [self.shape]
        for shape in allowed:
            if self.axis < array.ndim <= len(shape) and array.shape == shape[: array.ndim]:
                self.operands[operand] = full
                self.flags.append(operand)
                if shape != self.shape:
                    self.long.append(operand)
                return shape != self.shape
        wanted = " or ".join(f"shape {shape}" for shape in allowed)
        raise self.error(name, array, f"{wanted}, or its leading axes")

    def ends(
        self,
        terminated: ArrayLike | None,
        truncated: ArrayLike | None,
        episode_starts: ArrayLike | None,
        next_episode_start: ArrayLike | None,
        next_values: ArrayLike | None,
        *,
        forward: bool = False,
    ) -> None:
        """The flags that end episodes."""
        if terminated is not None and episode_starts is not None:
            raise ValueError(
                f"{self.function}: got both terminated and episode_starts; pass one of the two conventions"
            )
        if truncated is not None and episode_starts is not None:
            raise ValueError(
                f"{self.function}: truncated goes with terminated, since episode_starts does not tell a time limit "
                "from an end; pass terminated and truncated"
            )
        if truncated is not None and next_values is None and not forward:
            raise ValueError(
                f"{self.function}: truncated needs next_values, the value of the true next state of each step; "
                "values[t + 1] belongs to the next episode there"
            )
        if terminated is not None:
            self.flag("terminated", "terminated", terminated)
        if truncated is not None:
            self.flag("truncated", "truncated", truncated)
        if episode_starts is None:
            if next_episode_start is not None:
                raise ValueError(f"{self.function}: next_episode_start goes with episode_starts, which is None")
            return
        longer = self.flag("start", "episode_starts", episode_starts, longer=True)
        if longer and next_episode_start is not None:
            raise ValueError(
                f"{self.function}: episode_starts has T + 1 rows and next_episode_start is given; pass one of them"
            )
        if not longer and not forward:
            if next_episode_start is None:
                raise ValueError(
                    f"{self.function}: episode_starts has T rows, so whether the last step ended its episode is "
                    "unknown; pass next_episode_start, or T + 1 rows"
                )
            self.flags.append("next_start")
            self.at_edge("next_start", "next_episode_start", next_episode_start, "start")

    def ratios(self, log_rhos: ArrayLike | None, rhos: ArrayLike | None, **clips: ArrayLike | None) -> None:
        """Importance ratios, by themselves or as logarithms, and the bounds that clip them (None: not clipped)."""
        if (log_rhos is None) == (rhos is None):
            got = "neither" if rhos is None else "both"
            raise ValueError(f"{self.function}: pass one of log_rhos and rhos; got {got}")
        name, value = ("log_rhos", log_rhos) if rhos is None else ("rhos", rhos)
        self.series(name[:-1], name, value)
        self.carriers.pop()  # a ratio does not decide the type of the result
        for clip, bound in clips.items():
            if bound is not None:
                self.scalar(clip, clip, bound)

    def masks(self, mask: ArrayLike | None, mask_mode: str) -> None:
        if mask_mode not in ("skip", "reset"):
            raise ValueError(f"{self.function}: mask_mode must be 'skip' or 'reset'; got {mask_mode!r}")
        if mask is not None:
            self.flag("mask", "mask", mask)

    def values(
        self,
        values: ArrayLike | None,
        bootstrap_value: ArrayLike | None,
        next_values: ArrayLike | None,
        *,
        optional: bool = False,
    ) -> None:
        """The values of states: T + 1 rows, or T rows with what follows them."""
        if next_values is not None:
            if bootstrap_value is not None:
                raise ValueError(
                    f"{self.function}: next_values already says what follows the last step; drop bootstrap_value, "
                    "or next_values"
                )
            self.series("next_value", "next_values", next_values)
        if values is None:
            if next_values is None or not optional:
                wanted = "values or next_values" if optional else "values"
                raise ValueError(f"{self.function}: pass {wanted}; got None")
            return
        array = self.number("values", values)
        if array.shape == self.longer:
            if bootstrap_value is not None or next_values is not None:
                other = "bootstrap_value" if bootstrap_value is not None else "next_values"
                raise ValueError(
                    f"{self.function}: values has T + 1 rows, whose last is the bootstrap, and {other} is given; "
                    f"pass the first T rows of values with {other}, or values alone"
                )
            self.operands["value"] = array
            self.long.append("value")
            self.carriers.append(array)
            return
        if array.shape != self.shape:
            raise self.error(
                "values", array, f"shape {self.longer}, or {self.shape} with bootstrap_value or next_values"
            )
        self.operands["value"] = array
        self.carriers.append(array)
        if next_values is None:
            if bootstrap_value is None:
                raise ValueError(
                    f"{self.function}: values has T rows, so the value after the last step is unknown; pass "
                    "bootstrap_value (0.0 if every column ends its episode there), next_values, or values with T + 1 "
                    "rows"
                )
            self.at_edge("bootstrap", "bootstrap_value", bootstrap_value, "value")
