"""What the compat modules share: shape checks under the caller's names, stop_gradient switches, action look-ups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

import rltriton_jax

from .._host import to_array

T = TypeVar("T")
Flag = bool | Array  # a traced flag is taken too


def arrays(function: str, shape: tuple[str, ...], **named: ArrayLike) -> list[Array]:
    """The arguments as arrays: all of one shape, which has the axes that `shape` names."""
    return _alike(function, shape, named)


def flags(function: str, shape: tuple[str, ...], name: str, x: ArrayLike, **like: Array) -> Array:
    """The argument as flags (nonzero is true), of the shape of the array `like`, which comes by its name."""
    return _alike(function, shape, {**like, name: x}, flag=True)[-1]


def _alike(function: str, shape: tuple[str, ...], named: dict[str, Any], *, flag: bool = False) -> list[Array]:
    out = {name: to_array(function, name, x, flag=flag) for name, x in named.items()}
    first = next(iter(out))
    for name, x in out.items():
        if x.ndim != len(shape):
            what = "one trajectory; map the function over a batch with jax.vmap" if len(shape) == 1 else "such an array"
            raise ValueError(f"{function}: {name} has shape {x.shape}; pass shape [{', '.join(shape)}], {what}")
        if x.shape != out[first].shape:
            raise ValueError(
                f"{function}: {name} has shape {x.shape}, but {first} has shape {out[first].shape}; pass equal shapes"
            )
    return list(out.values())


def require_rows(function: str, name: str, x: Array, rows: int, axis: int, like: str) -> None:
    """ValueError unless x has so many rows along the axis; one fewer than none is none."""
    rows = max(rows, 0)
    if x.shape[axis] != rows:
        raise ValueError(f"{function}: {name} has shape {x.shape}; pass {rows} rows along axis {axis}, {like}")


def spread(function: str, name: str, x: ArrayLike, shape: tuple[int, ...], *, exact: bool = False) -> Array:
    """A scalar as it is; an array of `shape`, whose axes may be 1 unless `exact`, as one of that shape."""
    out = to_array(function, name, x)
    if out.ndim == 0:
        return out
    fits = len(out.shape) == len(shape) and all(n in (1, m) for n, m in zip(out.shape, shape))
    if not fits or (exact and out.shape != shape):
        ones = "" if exact else ", where axes may be 1"
        raise ValueError(f"{function}: {name} has shape {out.shape}; pass a scalar or shape {shape}{ones}")
    return jnp.broadcast_to(out, shape)


def stopped(stop: Flag, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """function(*args, **kwargs), through which no gradient flows where `stop` is set."""
    if not isinstance(stop, bool | np.bool_):
        return jax.tree.map(lambda x: jnp.where(stop, jax.lax.stop_gradient(x), x), function(*args, **kwargs))
    if stop:  # in front of the scan: what is not differentiated saves nothing for a gradient
        constant = lambda x: jax.lax.stop_gradient(x) if isinstance(x, Array) else x
        args, kwargs = tuple(map(constant, args)), {name: constant(x) for name, x in kwargs.items()}
    return function(*args, **kwargs)


def error_against(stop: Flag, error: Array, prediction: Array) -> Array:
    """target - prediction of target = prediction + error, which is a constant where `stop` is set."""
    if isinstance(stop, bool | np.bool_) and not stop:
        return error
    dtype = jnp.result_type(error, prediction)
    constant = _against_constant(error.astype(dtype), prediction.astype(dtype))
    return constant if isinstance(stop, bool | np.bool_) else jnp.where(stop, constant, error)


@jax.custom_jvp
def _against_constant(error: Array, prediction: Array) -> Array:
    return error  # stop_gradient(error + prediction) - prediction would read the prediction


_against_constant.defjvp(lambda primals, tangents: (primals[0], -tangents[1]))


def taken(function: str, name: str, values: ArrayLike, actions: ArrayLike) -> Array:
    """The value of each action: `[..., A]` and `[...]` give `[...]`. Errors call the actions `name`."""
    values, actions = jnp.asarray(values), jnp.asarray(actions)
    if not jnp.issubdtype(actions.dtype, jnp.integer):
        raise TypeError(f"{function}: {name} has dtype {actions.dtype}; pass integers, the actions taken")
    if actions.shape != values.shape[:-1]:
        raise ValueError(
            f"{function}: {name} has shape {actions.shape}; pass shape {values.shape[:-1]}, an action for each row of "
            f"values with shape {values.shape}"
        )
    return jnp.take_along_axis(values, actions[..., None], axis=-1)[..., 0]


def zero_where(flag: Array, x: Array) -> Array:
    """x, and 0 where the flag is set: x is not read there, and gets no gradient."""
    return jnp.where(flag, (~flag).astype(x.dtype), x)  # by a constant 0, vmap would transpose


def behind(discount_t: Array, x: Array) -> Array:
    """x of the next states, 0 where the discount ends the episode: it is not read, and sends back no gradient."""
    ended = discount_t == 0
    return zero_where(ended[..., None] if x.ndim > ended.ndim else ended, x)


def mixed(weight: ArrayLike, x: Array, y: Array) -> Array:
    """(1 - weight) x + weight y, where a number that is not finite and weighs 0 counts as 0."""
    part = lambda w, x: w * zero_where((w == 0) & ~jnp.isfinite(x), x)
    weight = jnp.asarray(weight)
    return part(1 - weight, x) + part(weight, y)


def before(first: float, x: Array, rows: int, axis: int = 0) -> Array:
    """`rows` rows: x moved one later in time, behind a row of `first`. (A pad keeps a mapped axis where it is.)"""
    pads = [(1, rows - 1 - n, 0) if i == axis else (0, 0, 0) for i, n in enumerate(x.shape)]
    return jax.lax.pad(x, jnp.asarray(first, x.dtype), pads)


def last(x: Array, axis: int = 0) -> Array:
    """The last row in time; 0 where there is none."""
    if x.shape[axis] == 0:
        return jnp.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)
    return jax.lax.index_in_dim(x, -1, axis, keepdims=False)


def after(x: Array, end: Array, axis: int = 0) -> Array:
    """x moved one row earlier in time, in front of a row of `end`."""
    if x.shape[axis] == 0:
        return x
    end = jnp.expand_dims(jnp.broadcast_to(end, (*x.shape[:axis], *x.shape[axis + 1 :])), axis)
    return jnp.concatenate([jax.lax.slice_in_dim(x, 1, None, axis=axis), end], axis)


def own_q(q_t: Array, discount_t: Array, axis: int) -> Array:
    """The action values in their own rows, from those of the states that follow; row 0 plays no part in a target."""
    live = behind(jax.lax.slice_in_dim(discount_t, 0, q_t.shape[axis], axis=axis), q_t)
    return before(0.0, live, discount_t.shape[axis], axis)


def off_policy_returns(
    q_t: Array, v_t: Array, r_t: Array, discount_t: Array, c_t: Array, stop: Flag, axis: int = 0
) -> Array:
    """The public function, for action values and traces that begin with the second step."""
    return stopped(
        stop,
        rltriton_jax.off_policy_returns,
        r_t,
        own_q(q_t, discount_t, axis),
        next_expected_q=v_t,
        traces=before(0.0, c_t, discount_t.shape[axis], axis),
        discount=discount_t,
        time_axis=axis,
    )


def retrace_errors(
    function: str,
    q_tm1: ArrayLike,
    q_t: ArrayLike,
    v_t: ArrayLike,
    r_t: ArrayLike,
    discount_t: ArrayLike,
    log_rhos: ArrayLike,
    lambda_: ArrayLike,
    stop: Flag,
    axes: tuple[str, ...],
) -> Array:
    """Retrace targets by logarithms of ratios, less `q_tm1`; the last of `axes` is time."""
    q_tm1, v_t, r_t, discount_t = arrays(function, axes, q_tm1=q_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t)
    q_t, log_rhos = arrays(function, axes, q_t=q_t, log_rhos=log_rhos)
    axis = len(axes) - 1
    rows = r_t.shape[axis]
    for batch in range(axis):
        require_rows(function, "q_t", q_t, r_t.shape[batch], batch, "as many as r_t")
    require_rows(function, "q_t", q_t, rows - 1, axis, "one fewer than r_t")
    mixing = spread(function, "lambda_", lambda_, q_t.shape)
    out = stopped(
        stop,
        rltriton_jax.retrace,
        r_t,
        own_q(q_t, discount_t, axis),
        next_expected_q=v_t,
        log_rhos=before(0.0, log_rhos, rows, axis),
        discount=discount_t,
        lambda_=before(0.0, mixing, rows, axis) if mixing.ndim else mixing,
        time_axis=axis,
    )
    return out.targets - q_tm1


def importance_corrected_td_errors(
    r_t: ArrayLike,
    discount_t: ArrayLike,
    rho_tm1: ArrayLike,
    lambda_: ArrayLike,
    values: ArrayLike,
    truncated: ArrayLike | None,
    stop: Flag,
) -> Array:
    """rho[t] times the generalised advantage whose lambda is l[t] rho[t+1]."""
    name = "importance_corrected_td_errors"
    r_t, discount_t, rho_tm1 = arrays(name, ("T",), r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1)
    (values,) = arrays(name, ("T + 1",), values=values)
    require_rows(name, "values", values, len(r_t) + 1, 0, "one more than r_t")
    following = jax.lax.pad(rho_tm1, jnp.ones((), rho_tm1.dtype), [(-1, 1, 0)])  # the last one is not read
    out = stopped(
        stop,
        rltriton_jax.gae,
        r_t,
        values[:-1],
        next_values=values[1:],
        discount=discount_t,
        lambda_=spread(name, "lambda_", lambda_, r_t.shape) * following,
        truncated=truncated,
    )
    return error_against(stop, rho_tm1 * out.advantages, values[:-1])
