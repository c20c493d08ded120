"""The one place that knows jax-triton: its two generations, and the repairs that some released combinations need."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import warnings
from importlib import metadata
from typing import Any

import jax.numpy as jnp


@functools.cache
def load():
    """The jax_triton module, repaired where needed. Raises ImportError with the reason where it cannot be used."""
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")  # line info is half of a launch's payload
    try:
        import triton.backends.nvidia.driver as driver
    except ImportError as error:
        raise ImportError(f"Triton's NVIDIA backend does not import: {error}") from error
    if not hasattr(driver, "TMA_TF32"):
        driver.TMA_TF32 = 11  # jax-triton 0.4 wants Triton >= 3.7's name; without it it disables the whole backend
    import jax_triton
    import triton.backends.nvidia.compiler as compiler
    from jax._src.interpreters import partial_eval  # jax.interpreters does not show the default rule

    library: Any = jax_triton.triton_lib
    if getattr(library, "_TMA_TF32", None) == 0:  # it was imported before the name was there
        library.cb, library._TMA_TF32 = compiler, driver.TMA_TF32
        library._TMA_DTYPE_DEVICE_TO_HOST = driver.TMA_DTYPE_DEVICE_TO_HOST
    call: Any = getattr(library, "triton_kernel_call_p", None)
    rules: dict[Any, Any] = getattr(partial_eval, "dce_rules", {})
    rule, default = rules.get(call), getattr(partial_eval, "_default_dce_rule", None)
    if rule is not None and default is not None:
        # jax 0.12 calls DCE rules with three arguments, jax-triton 0.4.1 has one of two; the default does the same
        if len(inspect.signature(rule).parameters) != len(inspect.signature(default).parameters):
            rules.pop(call)
    return jax_triton


@functools.cache
def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version("jax-triton").split(".")[:2])


def why_not() -> str | None:
    """Why Triton kernels cannot be used here, or None."""
    try:
        load()
    except Exception as error:  # a broken install raises more than ImportError
        return f"{type(error).__name__}: {error}"
    return None


def call(kernel, operands, outs, *, grid, warps, name):
    """Runs a kernel of flat pointers, on outs of which those of integers are zeros at first.

    Compiles for the GPU at hand, or for sm_90 where there is none (export).
    """
    jax_triton = load()
    options = dict(kernel=kernel, grid=grid, num_warps=warps, num_stages=1, name=name, compute_capability=_capability())
    zeroed = tuple(k for k, out in enumerate(outs) if jnp.issubdtype(out.dtype, jnp.integer))
    if zeroed:
        options["zeroed_outputs"] = zeroed
    if _version() < (0, 4):
        return jax_triton.triton_call(*operands, out_shape=outs, **options)
    with contextlib.ExitStack() as stack:
        if zeroed:  # 0.4 would rather have a Ref of zeros, which costs a kernel that fills it and, in a loop, a copy
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "zeroed_outputs", DeprecationWarning)
        return jax_triton.triton_call(*operands, out_type=outs, backend_options=_backend_options(), **options)


@functools.cache
def _capability() -> int | None:
    import jax

    return None if jax.default_backend() == "gpu" else 90


@functools.cache
def _backend_options() -> dict[str, int]:
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return {"ptx_version": 87} if version >= (3, 9) else {}  # 3.9 stamps PTX 9.4, which XLA's ptxas 13.0 rejects
