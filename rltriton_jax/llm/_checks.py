"""Reading of arguments: floating arrays, flags and ids, with errors that say what came and what to pass."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._backends import IMPLEMENTATIONS
from .._host import to_array as to_array
from .._host import too_narrow


def is_concrete(*arrays: jax.Array) -> bool:
    """Whether every value can be read now, so that values (and not only shapes) can be checked."""
    return all(not isinstance(x, jax.core.Tracer) and x.is_fully_addressable for x in arrays)


def check_shape(function: str, name: str, x: jax.Array, shape: tuple[int, ...], like: str) -> None:
    if x.shape != shape:
        raise ValueError(f"{function}: {name} has shape {x.shape}; pass shape {shape}, {like}")


def check_rank(function: str, name: str, x: jax.Array, axes: Sequence[str]) -> None:
    if x.ndim != len(axes):
        raise ValueError(f"{function}: {name} has shape {x.shape}; pass an array of shape [{', '.join(axes)}]")


def read_floats(function: str, name: str, value: ArrayLike | Sequence[float]) -> jax.Array:
    """The array as a floating one: integers and bools are promoted."""
    x = to_array(function, name, value)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def read_scalar(function: str, name: str, value: ArrayLike, dtype: Any, *, least: float | None = None) -> jax.Array:
    """The scalar in `dtype`; that it is finite and at least `least` is checked where the value can be read."""
    x = read_floats(function, name, value)
    if x.ndim:
        raise ValueError(f"{function}: {name} has shape {x.shape}; pass a scalar")
    if least is not None and is_concrete(x) and not least <= float(x) < np.inf:
        raise ValueError(f"{function}: {name} is {float(x)}; pass a finite number of at least {least:g}")
    return x.astype(dtype)


def read_flags(function: str, name: str, value: ArrayLike | None, shape: tuple[int, ...], like: str) -> jax.Array:
    """Nonzero is true; None is true everywhere."""
    if value is None:
        return jnp.ones(shape, bool)
    x = to_array(function, name, value, flag=True)
    check_shape(function, name, x, shape, like)
    return x if x.dtype == jnp.bool_ else x != 0


def read_ids(function: str, name: str, value: ArrayLike, shape: tuple[int, ...] | None, like: str) -> jax.Array:
    """Integer ids with -1 for padding; the values are checked where they can be read."""
    if not isinstance(value, jax.Array):
        value = _host_ids(function, name, value)
    x = to_array(function, name, value)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; pass an integer array, with -1 for padding")
    if shape is not None:
        check_shape(function, name, x, shape, like)
    if x.size and is_concrete(x) and (lowest := int(np.asarray(x).min())) < -1:
        raise ValueError(f"{function}: {name} holds {lowest}; pass ids of 0 or more, with -1 for padding")
    # A narrow type could not hold the numbers of rows and turns that ids are compared with.
    return x if x.dtype.itemsize >= 4 else x.astype(jnp.int32)


def _host_ids(function: str, name: str, value: Any) -> np.ndarray:
    try:
        host = np.asarray(value)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise TypeError(f"{function}: {name} is {kind}; pass an integer array, with -1 for padding") from error
    if host.dtype.kind not in "biufc":
        raise TypeError(
            f"{function}: {name} is {type(value).__name__} of dtype {host.dtype}; pass an integer array, with -1 for "
            "padding, for example np.unique(ids, return_inverse=True)[1]"
        )
    kept = too_narrow(host)
    if kept is not None:  # ids that differ would merge
        raise ValueError(
            f"{function}: {name} holds {host.max()} and {host.min()}, which {kept} cannot; "
            "pass smaller ids, for example np.unique(ids, return_inverse=True)[1], or enable x64"
        )
    return host if host.size else host.astype(np.int32)


def check_ids_below(function: str, name: str, ids: jax.Array, bound: int, what: str) -> None:
    if ids.size and is_concrete(ids) and (highest := int(np.asarray(ids).max())) >= bound:
        raise ValueError(f"{function}: {name} holds {highest}, but there are {bound} {what}; pass ids below {bound}")


def check_finite(function: str, name: str, x: jax.Array, live: jax.Array) -> None:
    """ValueError for NaN or inf in a live entry, where the values can be read."""
    if not (x.size and is_concrete(x, live)):
        return
    bad = np.asarray(live) & ~np.isfinite(np.asarray(x).astype(np.float64))
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{function}: {name} of shape {x.shape} holds {int(bad.sum())} NaN or inf in live entries, "
            f"the first at {where}; pass finite values, or mask those entries out"
        )


def read_static_int(function: str, name: str, value: Any, *, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        kind = type(value).__name__
        raise TypeError(f"{function}: {name} is {kind}; pass a Python int (static under jit)") from error
    if number < least:
        raise ValueError(f"{function}: {name} is {number}; pass at least {least}")
    return number


def read_ddof(function: str, value: Any) -> int:
    ddof = read_static_int(function, "ddof", value, least=0)
    read_choice(function, "ddof", ddof, (0, 1))
    return ddof


def read_choice(function: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise ValueError(f"{function}: {name} is {value!r}; pass one of {', '.join(map(repr, choices))}")


def read_implementation(function: str, implementation: Any) -> None:
    read_choice(function, "implementation", implementation, (None, *IMPLEMENTATIONS))


def compute_dtype(dtype: Any) -> Any:
    """float64 for float64, float32 for everything narrower."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def read_carriers(function: str, **values: ArrayLike) -> tuple[list[jax.Array], Any]:
    """The arrays as floating ones, and the dtype of the result: the promotion of those that came as floating ones."""
    came = [to_array(function, name, value) for name, value in values.items()]
    read = [read_floats(function, name, x) for name, x in zip(values, came, strict=True)]
    floating = [x.dtype for x in came if jnp.issubdtype(x.dtype, jnp.floating)] or [read[0].dtype]
    # The caller may have asked JAX for strict promotion, which has no answer for mixed floats.
    with jax.numpy_dtype_promotion("standard"):
        return read, jnp.result_type(*floating)
