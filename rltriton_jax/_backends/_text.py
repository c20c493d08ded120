"""Prints a pointwise JAX function as a Triton device function: one text serves XLA, the kernels and their adjoints."""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend import core

_INFIX = {
    "add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_CALLS = {"exp": "tl.exp({})", "log": "tl.log({})", "sqrt": "tl.sqrt({})", "abs": "tl.abs({})", "neg": "-{}"}
_SAME = ("copy", "stop_gradient", "broadcast_in_dim", "reshape", "squeeze", "copy_p", "pvary", "pcast")
_BOUND = {"max": "tl.maximum", "min": "tl.minimum"}


def _flat(jaxpr, consts, args, read, equations):
    """Lists the equations of a jaxpr with calls inlined; `read` maps variables to names."""
    for var, value in zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True):
        read[var] = value
    for eqn in jaxpr.eqns:
        ins = [_literal(v) if isinstance(v, core.Literal) else read[v] for v in eqn.invars]
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if inner is not None:
            inner_consts = [_number(c) for c in getattr(inner, "consts", ())]
            results = _flat(getattr(inner, "jaxpr", inner), inner_consts, ins, {}, equations)
        else:
            results = [(len(equations), i) for i in range(len(eqn.outvars))]
            equations.append((eqn, ins))
        read.update(zip(eqn.outvars, results, strict=True))
    return [_literal(v) if isinstance(v, core.Literal) else read[v] for v in jaxpr.outvars]


def _literal(literal):
    return _number(literal.val)


def _number(value):
    if getattr(value, "shape", ()):
        raise TypeError(f"a formula must be pointwise, got a constant of shape {value.shape}")
    value = value.item() if hasattr(value, "item") else value
    # JAX subclasses Python's numbers
    plain = next(kind(value) for kind in (bool, int, float) if isinstance(value, kind))
    finite = not isinstance(plain, float) or abs(plain) < float("inf")
    return repr(plain) if finite else f"float('{plain}')"


def _expression(eqn, ins):
    name = eqn.primitive.name
    if name in _INFIX:
        return f"{ins[0]} {_INFIX[name]} {ins[1]}"
    if name in _CALLS:
        return _CALLS[name].format(*ins)
    if name in _BOUND:
        return f"{_BOUND[name]}({ins[0]}, {ins[1]}, propagate_nan=tl.PropagateNan.ALL)"
    if name == "select_n" and len(ins) == 3:
        return f"tl.where({ins[0]}, {ins[2]}, {ins[1]})"
    if name == "not":
        return f"{ins[0]} == 0"
    if name == "integer_pow":
        return " * ".join([ins[0]] * eqn.params["y"]) if eqn.params["y"] > 0 else None
    if name == "square":
        return f"{ins[0]} * {ins[0]}"
    if name == "is_finite":
        return f"tl.abs({ins[0]}) < float('inf')"
    if name == "convert_element_type":
        old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
        if old == new or (jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)):
            return ins[0]
        if old == jnp.dtype(bool) and jnp.issubdtype(new, jnp.floating):
            return f"tl.where({ins[0]}, 1.0, 0.0)"
    if name in _SAME:
        return ins[0]
    return None


def body_of(f: Callable, avals: Sequence, arguments: Sequence[str]) -> tuple[str, frozenset[str]]:
    """(text, used): the lines of a Triton function that computes `f`, and which of its arguments they read.

    `f` takes scalars of the types `avals`, which the text calls `arguments`, and returns a tuple of scalars.
    """
    closed = jax.make_jaxpr(f)(*avals)
    equations: list = []
    outs = _flat(closed.jaxpr, [_number(c) for c in closed.consts], list(arguments), {}, equations)
    used, needed = set(), {v for v in outs if isinstance(v, tuple)}
    used |= {v for v in outs if isinstance(v, str)}
    for i in reversed(range(len(equations))):
        eqn, ins = equations[i]
        if any((i, j) in needed for j in range(len(eqn.outvars))):
            needed |= {v for v in ins if isinstance(v, tuple)}
            used |= {v for v in ins if isinstance(v, str)}
    names: dict = {}
    lines = []

    def text_of(v):
        return v if isinstance(v, str) else names[v]

    for i, (eqn, ins) in enumerate(equations):
        if (i, 0) not in needed:
            continue
        expression = _expression(eqn, [text_of(v) for v in ins])
        if expression is None:
            raise TypeError(
                f"a formula may use operators, where, minimum, maximum, exp and log; this one uses {eqn.primitive.name}"
            )
        if expression in arguments or expression in names.values():
            names[i, 0] = expression
        else:
            names[i, 0] = f"v{len(names)}"
            lines.append(f"    {names[i, 0]} = {expression}")
    lines.append(f"    return ({', '.join(map(text_of, outs))},)")
    return "\n".join(lines) + "\n", frozenset(used & set(arguments))


def compile_text(text: str, name: str, scope: dict):
    """The function `name` that `text` defines; Triton finds its source through linecache."""
    filename = f"<rltriton_jax {name} {zlib.crc32(text.encode()):08x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope = {**scope, "__name__": __name__}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]
