"""rl-triton's seven functions: batch-major `[num_envs, seq_len]` arrays and flags of any dtype (nonzero is true)."""

from ._advantages import compute_gae as compute_gae
from ._advantages import compute_retrace as compute_retrace
from ._advantages import compute_vtrace as compute_vtrace
from ._returns import compute_discounted_returns as compute_discounted_returns
from ._returns import compute_eligibility_traces as compute_eligibility_traces
from ._returns import compute_episodic_prefix_sum as compute_episodic_prefix_sum
from ._returns import compute_lambda_returns as compute_lambda_returns
