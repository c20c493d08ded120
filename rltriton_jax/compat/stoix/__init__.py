"""Stoix's batched multistep functions (utils.multistep): `[B, T]`, or `[T, B]` with `time_major=True`.

`discount_t` is per step, and a 0 in it ends an episode. An array `lambda_` has the layout of `r_t` and broadcasts
against it by NumPy's rules, in either layout.
"""

from ._off_policy import batch_general_off_policy_returns_from_q_and_v as batch_general_off_policy_returns_from_q_and_v
from ._off_policy import batch_q_lambda as batch_q_lambda
from ._off_policy import batch_retrace_continuous as batch_retrace_continuous
from ._off_policy import importance_corrected_td_errors as importance_corrected_td_errors
from ._returns import batch_discounted_returns as batch_discounted_returns
from ._returns import batch_lambda_returns as batch_lambda_returns
from ._returns import batch_n_step_bootstrapped_returns as batch_n_step_bootstrapped_returns
from ._returns import (
    batch_truncated_generalized_advantage_estimation as batch_truncated_generalized_advantage_estimation,
)
