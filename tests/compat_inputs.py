"""Inputs of the compat tests: the names of rlax, arguments for each of its functions, roll-outs for the others."""

import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rltriton_jax import compat

T, B, A = 6, 3, 4

MULTISTEP = (
    "lambda_returns",
    "n_step_bootstrapped_returns",
    "discounted_returns",
    "importance_corrected_td_errors",
    "truncated_generalized_advantage_estimation",
    "general_off_policy_returns_from_action_values",
    "general_off_policy_returns_from_q_and_v",
)
VTRACE = (
    "vtrace",
    "leaky_vtrace",
    "vtrace_td_error_and_advantage",
    "leaky_vtrace_td_error_and_advantage",
)
VALUE_LEARNING = ("td_lambda", "sarsa_lambda", "q_lambda", "retrace", "retrace_continuous")
NONLINEAR = (
    "transformed_lambda_returns",
    "transformed_n_step_returns",
    "transformed_general_off_policy_returns_from_action_values",
    "transformed_q_lambda",
    "transformed_retrace",
    "transformed_n_step_q_learning",
)
RLAX = (*MULTISTEP, *VTRACE, *VALUE_LEARNING, *NONLINEAR)


def rlax_function(name):
    """rlax's function by keyword; one of them is no name of rlax's, but of its module."""
    rlax = pytest.importorskip("rlax")
    function = getattr(rlax, name, None) or getattr(importlib.import_module("rlax._src.multistep"), name)
    hidden = getattr(function, "__wrapped__", None)
    if hidden is None:
        return function
    required = [k for k, p in inspect.signature(hidden).parameters.items() if p.default is p.empty]

    @functools.wraps(function)
    def by_keyword(tx_pair, **kwargs):  # the decorator of these looks for arguments by position
        return function(tx_pair, *(kwargs.pop(k) for k in required), **kwargs)

    return by_keyword


def rlax_arguments(name, seed=0, per_step=False, masked=False, zeros=True):
    """Arguments by name for every parameter of a function, with time first and a batch behind it."""
    rng = np.random.default_rng(seed)
    short = name in ("general_off_policy_returns_from_q_and_v", "retrace_continuous")
    normal = lambda *shape: rng.normal(size=shape)
    probabilities = lambda: np.exp(logits := normal(T, B, A)) / np.exp(logits).sum(-1, keepdims=True)
    action_values = lambda: normal(T, B) if short else normal(T, B, A)
    rows = T - 1 if short else T
    of = {
        "values": lambda: normal(T + 1, B),
        "discount_t": lambda: np.where(rng.random((T, B)) < 0.25 * zeros, 0.0, rng.uniform(0.5, 1.1, (T, B))),
        "rho_tm1": lambda: np.exp(normal(T, B)),
        "mu_t": lambda: rng.uniform(0.1, 1.0, (T, B)),
        "log_rhos": lambda: normal(rows, B),
        "c_t": lambda: rng.uniform(0.0, 1.2, (rows, B)),
        "pi_t": probabilities,
        "q_tm1": action_values,
        "q_t": lambda: normal(rows, B) if short else normal(T, B, A),
        "target_q_t": action_values,
        "a_tm1": lambda: rng.integers(0, A, (T, B)),
        "a_t": lambda: rng.integers(0, A, (T, B)),
        "lambda_": lambda: rng.uniform(0.2, 1.0, (rows, B)) if per_step else 0.7,
        "n": lambda: 3,
        "sample_mask": lambda: rng.random((T, B)) < 0.7,
        **dict.fromkeys(("alpha", "alpha_"), lambda: 0.6),
        "clip_rho_threshold": lambda: 0.9,
        "clip_pg_rho_threshold": lambda: 1.3,
        "tx_pair": lambda: importlib.import_module("rlax").SIGNED_HYPERBOLIC_PAIR,
    }
    of["lambda_t"] = of["lambda_"]
    skipped = {"stop_target_gradients", "eps"} | (set() if masked else {"sample_mask"})
    names = [p for p in inspect.signature(getattr(compat.rlax, name)).parameters if p not in skipped]
    return {p: of.get(p, lambda: normal(T, B))() for p in names}


def split_static(kwargs):
    static = {k: v for k, v in kwargs.items() if k in ("n", "tx_pair", "stop_target_gradients")}
    return static, {k: v for k, v in kwargs.items() if k not in static}


def by_form(form, function, kwargs):
    """A function of one trajectory, on every column of a batch: one at a time, or mapped over axis 1."""
    static, traced = split_static(kwargs)
    call = lambda traced: function(**static, **traced)
    axes = {k: None if np.ndim(v) == 0 else 1 for k, v in traced.items()}
    if form == "vmap":
        return jax.vmap(call, (axes,), 1)(traced)
    call = jax.jit(call) if form == "jit" else call
    columns = [call({k: v if axes[k] is None else v[:, b] for k, v in traced.items()}) for b in range(B)]
    return jax.tree.map(lambda *x: jnp.stack(x, 1), *columns)


def one_trajectory(kwargs):
    return {k: v[:, 0] if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}


def window(seed=0, truncations=True, dtype=np.float64):
    """Time-major rewards, values, values of the true next states, and float flags of which one at most is set."""
    rng = np.random.default_rng(seed)
    kind = rng.random((T, B))
    terminated, truncated = kind < 0.2, (kind > 0.8) & truncations
    r, v, following = (rng.normal(size=(T, B)) for _ in range(3))
    return r, v, following, terminated.astype(dtype), truncated.astype(dtype)
