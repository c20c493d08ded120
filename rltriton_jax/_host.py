"""Arguments read as arrays: numbers of the host stay what they are, or are refused; without x64 JAX would drop bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def too_narrow(host: np.ndarray) -> Any:
    """The type in which JAX would hold these integers, where it cannot hold them all; else None."""
    if not (host.size and np.issubdtype(host.dtype, np.integer)):
        return None
    kept = jax.dtypes.canonicalize_dtype(host.dtype)
    if kept == host.dtype:
        return None
    fits = np.iinfo(kept).min <= int(host.min()) and int(host.max()) <= np.iinfo(kept).max
    return None if fits else kept


def representable(function: str, name: str, value: Any, *, flag: bool = False) -> Any:
    """`value`, or what says the same in a type that JAX has; ValueError where integers would wrap."""
    if isinstance(value, jax.Array):
        return value
    try:
        if isinstance(value, int) and value.bit_length() > 63:
            return float(value)
        host = np.asarray(value)
    except Exception:  # JAX may read it, or will say why not
        return value
    if host.dtype.kind not in "iuf":
        return value
    if flag:
        return value if jax.dtypes.canonicalize_dtype(host.dtype) == host.dtype else host != 0
    kept = too_narrow(host)
    if kept is None:
        return value
    if host.ndim == 0:  # a parameter, with which floating numbers are multiplied
        return float(host)
    raise ValueError(
        f"{function}: {name} holds {host.max()} and {host.min()}, which {kept} cannot; pass floating numbers, or enable x64"
    )


def to_array(function: str, name: str, value: Any, *, flag: bool = False) -> jax.Array:
    """An argument as real numbers or flags; TypeError for anything else, None too."""
    if value is None:
        raise TypeError(f"{function}: {name} is required; got None")
    value = representable(function, name, value, flag=flag)
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray) else ""
        raise TypeError(
            f"{function}: {name} must be an array; got {type(value).__name__}{dtype}; pass numbers, in equal rows"
        ) from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool) or jnp.iscomplexobj(array):
        raise TypeError(
            f"{function}: {name} must be real numbers or flags; got dtype {array.dtype}; pass integers, floats or bools"
        )
    return array
