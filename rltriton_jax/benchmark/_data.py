"""Operands of a case, drawn on the device, and the bytes that a call must move."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._cases import Case
from ._estimators import ESTIMATORS, LOG_RATIO, LONG, UNIT

ENDS, PADDING = 0.01, 0.2  # the parts of all steps that end an episode, and that a mask drops


def draw(case: Case, seed: int = 0) -> dict[str, Any]:
    """Fresh operands; flags are one byte each."""
    spec = ESTIMATORS[case.estimator]

    def build(key: Any) -> dict[str, Any]:
        args = {}
        for name, kind in spec.operands.items():
            key, own = jax.random.split(key)
            shape = list(case.shape)
            shape[case.time_axis] += kind == LONG
            if kind == UNIT:
                x = jax.random.uniform(own, shape)
            else:
                x = jax.random.normal(own, shape) * (0.3 if kind == LOG_RATIO else 1.0)
            args[name] = x.astype(case.dtype)
        for name, share in (("terminated", ENDS), ("mask", 1 - PADDING)):
            key, own = jax.random.split(key)
            if spec.flags and (name != "mask" or case.masked):
                args[name] = jax.random.uniform(own, case.shape) < share
        return args

    return jax.jit(build)(jax.random.key(seed, impl="rbg"))


def cotangents(case: Case, seed: int = 1) -> tuple[Any, ...]:
    def build(key: Any) -> tuple[Any, ...]:
        keys = jax.random.split(key, ESTIMATORS[case.estimator].outs)
        return tuple(jax.random.normal(k, case.shape).astype(case.dtype) for k in keys)

    return jax.jit(build)(jax.random.key(seed, impl="rbg"))


def inputs(case: Case, seed: int = 0) -> tuple[Any, ...]:
    """The positional arguments of what is measured."""
    args = draw(case, seed)
    return (args, cotangents(case, seed + 1)) if case.gradient else (args,)


def moved(case: Case, args: dict[str, Any]) -> int:
    """Each input read once and each output written once; with the gradient, once in each of the two kernels."""
    spec = ESTIMATORS[case.estimator]
    step = jnp.dtype(case.dtype).itemsize * case.length * case.columns
    total = sum(x.nbytes for x in args.values()) + spec.outs * step
    if case.gradient:
        flags = [name for name in args if name not in spec.operands]
        read = sum(args[name].nbytes for name in (*flags, *spec.residual))
        states = step if case.estimator == "linear_recurrence" else 0  # its derivative by coefficients reads the state
        total += read + states + spec.outs * step + sum(args[name].nbytes for name in spec.wanted)
    return total
