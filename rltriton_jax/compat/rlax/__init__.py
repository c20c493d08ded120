"""rlax's multistep functions, V-trace and learning targets, one trajectory a call; any other name comes from rlax.

Row t of `r_t`, `discount_t` and `v_t` belongs to the transition from state t to state t + 1, row t of `v_tm1`, `q_tm1`,
`a_tm1` and `rho_tm1` to state t. A 0 in `discount_t` ends an episode, and nothing behind it is read. Batches go through
`jax.vmap` over any axis, which the scans take where it stands.
"""

from __future__ import annotations

from typing import Any

from ._multistep import discounted_returns as discounted_returns
from ._multistep import general_off_policy_returns_from_action_values as general_off_policy_returns_from_action_values
from ._multistep import general_off_policy_returns_from_q_and_v as general_off_policy_returns_from_q_and_v
from ._multistep import importance_corrected_td_errors as importance_corrected_td_errors
from ._multistep import lambda_returns as lambda_returns
from ._multistep import n_step_bootstrapped_returns as n_step_bootstrapped_returns
from ._multistep import truncated_generalized_advantage_estimation as truncated_generalized_advantage_estimation
from ._nonlinear_bellman import (
    transformed_general_off_policy_returns_from_action_values as transformed_general_off_policy_returns_from_action_values,
)
from ._nonlinear_bellman import transformed_lambda_returns as transformed_lambda_returns
from ._nonlinear_bellman import transformed_n_step_q_learning as transformed_n_step_q_learning
from ._nonlinear_bellman import transformed_n_step_returns as transformed_n_step_returns
from ._nonlinear_bellman import transformed_q_lambda as transformed_q_lambda
from ._nonlinear_bellman import transformed_retrace as transformed_retrace
from ._value_learning import q_lambda as q_lambda
from ._value_learning import retrace as retrace
from ._value_learning import retrace_continuous as retrace_continuous
from ._value_learning import sarsa_lambda as sarsa_lambda
from ._value_learning import td_lambda as td_lambda
from ._vtrace import VTraceOutput as VTraceOutput
from ._vtrace import leaky_vtrace as leaky_vtrace
from ._vtrace import leaky_vtrace_td_error_and_advantage as leaky_vtrace_td_error_and_advantage
from ._vtrace import vtrace as vtrace
from ._vtrace import vtrace_td_error_and_advantage as vtrace_td_error_and_advantage


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        import rlax
    except ImportError as error:
        raise AttributeError(
            f"rltriton_jax.compat.rlax has no {name!r} of its own, and rlax, which may have it, is not installed"
        ) from error
    return getattr(rlax, name)
