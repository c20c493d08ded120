"""Numbers of the host, kept as JAX can hold them: without x64 it would drop half of their bits in silence."""

from __future__ import annotations

from typing import Any

import jax
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
