"""RL credit assignment as one associative scan: Triton kernels on GPU, plain JAX everywhere else."""

from ._advantages import GAE as GAE
from ._advantages import Retrace as Retrace
from ._advantages import VTrace as VTrace
from ._advantages import gae as gae
from ._advantages import retrace as retrace
from ._advantages import vtrace as vtrace
from ._returns import discounted_returns as discounted_returns
from ._returns import lambda_returns as lambda_returns
from ._returns import n_step_returns as n_step_returns
from ._returns import off_policy_returns as off_policy_returns
from ._traces import eligibility_traces as eligibility_traces
from ._traces import episodic_prefix_sum as episodic_prefix_sum
from ._traces import linear_recurrence as linear_recurrence
from ._version import __version__ as __version__

from . import compat as compat  # isort: skip
from . import llm as llm  # isort: skip

__all__ = [name for name in dir() if not name.startswith("_") and name != "kernels"]  # what help() lists
