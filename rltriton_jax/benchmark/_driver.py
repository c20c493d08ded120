"""The CUDA driver's own device-to-device copy, timed by events, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

ROUNDS, COPIES = 15, 16


class _Failed(Exception):
    pass


def _checked(library: Any) -> Any:
    def call(name: str, *args: Any) -> None:
        code = getattr(library, name)(*args)
        if code:
            raise _Failed(f"{name} returned {code}")

    return call


def copy_seconds(sources: Sequence[Any]) -> list[float] | None:
    """Seconds of one copy of a source, for each round of copies back to back; None where it cannot be done."""
    device = next(iter(sources[0].devices()))
    if device.platform != "gpu":
        return None
    try:
        return _timed(_checked(ctypes.CDLL("libcuda.so.1")), sources, device.local_hardware_id or 0)
    except (OSError, AttributeError, _Failed):
        return None


def _timed(call: Any, sources: Sequence[Any], ordinal: int) -> list[float]:
    targets = jax.block_until_ready([jnp.zeros_like(x) for x in sources])
    pairs = [
        (ctypes.c_uint64(to.unsafe_buffer_pointer()), ctypes.c_uint64(of.unsafe_buffer_pointer()))
        for to, of in zip(targets, sources, strict=True)
    ]
    size = ctypes.c_size_t(sources[0].nbytes)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    events = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuStreamCreate", ctypes.byref(stream), 1)
        for event in events:
            call("cuEventCreate", ctypes.byref(event), 0)
        found = []
        for round_ in range(ROUNDS + 1):
            call("cuEventRecord", events[0], stream)
            for k in range(COPIES):
                call("cuMemcpyDtoDAsync_v2", *pairs[(round_ * COPIES + k) % len(pairs)], size, stream)
            call("cuEventRecord", events[1], stream)
            call("cuStreamSynchronize", stream)
            elapsed = ctypes.c_float()
            call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
            found.append(elapsed.value / 1e3 / COPIES)
        if not bool(jnp.array_equal(targets[0], sources[0])):
            raise _Failed("the copy did not arrive")
        return found[1:]
    finally:
        popped = ctypes.c_void_p()
        for event in events:
            if event:
                call("cuEventDestroy_v2", event)
        if stream:
            call("cuStreamDestroy_v2", stream)
        call("cuCtxPopCurrent_v2", ctypes.byref(popped))
        call("cuDevicePrimaryCtxRelease_v2", ordinal)
