"""Runs Triton kernels on NumPy arrays through Triton's interpreter: no GPU, no torch, no environment variable."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np

_NAMES = {
    "bool": "i1", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64",
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)}, **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip
_LOCK = threading.Lock()  # the interpreter patches triton.language while it runs


class Pointer:
    """A NumPy array as the tensor that the interpreter expects; device and host are the same memory."""

    __slots__ = ("dtype", "x")

    def __init__(self, x: np.ndarray):
        if not x.flags.c_contiguous:
            raise ValueError("the interpreter needs contiguous arrays")
        self.x, self.dtype = x, _NAMES[x.dtype.name]

    def data_ptr(self):
        return self.x.ctypes.data if self.x.size else 16

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def copy_(self, other):
        pass

    def new_empty(self, *_, **__):
        return Pointer(self.x)

    def set_(self, *_):
        return self

    def storage_offset(self):
        return 0

    def size(self):
        return self.x.shape

    def stride(self):
        return self.x.strides


def _scan(self, tiles):
    """`tl.associative_scan`, a slice at a time; the stock one calls the combine function once an element."""
    axis, data = self.axis, [t.handle.data for t in tiles]
    outs = [np.empty_like(d) for d in data]

    def at(i):
        return tuple(slice(None) if k != axis else i for k in range(data[0].ndim))

    def wrap(values):
        return tuple(self.to_tensor(np.ascontiguousarray(np.atleast_1d(v)), t.dtype) for v, t in zip(values, tiles))

    state = wrap([d[at(0)] for d in data])
    for i in range(data[0].shape[axis]):
        if i:
            state = self.combine_fn.fn(*state, *wrap([d[at(i)] for d in data]))
            state = state if isinstance(state, tuple) else (state,)
        for out, s in zip(outs, state, strict=True):
            out[at(i)] = s.handle.data.reshape(out[at(i)].shape)
    return [self.to_tensor(out, t.dtype) for out, t in zip(outs, tiles, strict=True)]


def _boolean_mask(method, position):
    # Triton 3.9: `tile & python_bool` leaves integers behind an int1 tensor, which masked loads and stores reject
    def with_boolean_mask(self, *given, **kwargs):
        from triton.runtime.interpreter import TensorHandle

        args = list(given)
        mask = args[position]
        if hasattr(mask, "data") and not isinstance(mask, np.ndarray) and mask.data.dtype != np.bool_:
            args[position] = TensorHandle(mask.data.astype(np.bool_), mask.dtype)
        return method(self, *args, **kwargs)

    return with_boolean_mask


def _by_float32(cast):
    # Triton 3.9 takes the bits of bfloat16 for an integer where it converts from or to float64
    def cast_by_float32(self, source, to):
        import triton.language as tl

        if (source.dtype.scalar, to.scalar) in ((tl.bfloat16, tl.float64), (tl.float64, tl.bfloat16)):
            source = cast(self, source, tl.float32)
        return cast(self, source, to)

    return cast_by_float32


_interpreted: dict[int, tuple[Any, Any]] = {}


def _function(kernel):
    from triton.runtime import interpreter

    if isinstance(kernel, interpreter.InterpretedFunction):
        return kernel
    key = id(kernel)  # hashing a JITFunction walks its dependencies, which are patched meanwhile
    if key not in _interpreted:
        _interpreted[key] = (interpreter.InterpretedFunction(kernel.fn), kernel)
    return _interpreted[key][0]


@contextlib.contextmanager
def _patched():
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    builder = interpreter.InterpreterBuilder
    patch_tensor, patch_language = interpreter._patch_lang_tensor, interpreter._patch_lang
    kept = (
        JITFunction.__call__,
        interpreter.ScanOps.generic_scan,
        builder.create_masked_load,
        builder.create_masked_store,
        builder.create_atomic_rmw,
        builder.cast_impl,
    )
    scopes = []

    def tensor(cls, scope):
        patch_tensor(cls, scope)
        # Triton 3.6 takes int() of an array of shape (1,), which NumPy 2.5 refuses
        scope.set_attr(cls, "__index__", lambda self: int(np.asarray(self.handle.data).squeeze()))

    def language(fn):
        scope = patch_language(fn)  # device functions patch the language again and never restore it
        scopes.append(scope.restore)
        scope.restore = lambda: None
        return scope

    interpreter._patch_lang_tensor, interpreter._patch_lang = tensor, language
    JITFunction.__call__ = lambda self, *args, **kwargs: _function(self)(*args, **kwargs)
    interpreter.ScanOps.generic_scan = _scan
    builder.create_masked_load = _boolean_mask(kept[2], 1)
    builder.create_masked_store = _boolean_mask(kept[3], 2)
    builder.create_atomic_rmw = _boolean_mask(kept[4], 3)
    builder.cast_impl = _by_float32(kept[5])
    try:
        yield
    finally:
        (
            JITFunction.__call__,
            interpreter.ScanOps.generic_scan,
            builder.create_masked_load,
            builder.create_masked_store,
            builder.create_atomic_rmw,
            builder.cast_impl,
        ) = kept
        interpreter._patch_lang_tensor, interpreter._patch_lang = patch_tensor, patch_language
        for restore in reversed(scopes):
            restore()


def run(kernel, grid, arrays) -> None:
    """Runs `kernel` over `grid` on NumPy arrays, in place."""
    with _LOCK, _patched(), np.errstate(all="ignore"):
        _function(kernel)[grid](*map(Pointer, arrays))
