"""Credit assignment for language models and agents: groups of responses, token masks, turns and rollout trees.

Arrays of tokens are `[batch, tokens]`: for `rltriton_jax.gae` and its like, pass `time_axis=-1`.
"""

from ._groups import GROUP_PRESETS as GROUP_PRESETS
from ._groups import group_advantages as group_advantages
from ._groups import step_group_advantages as step_group_advantages
from ._segments import segment_ends as segment_ends
from ._segments import segment_starts as segment_starts
from ._tokens import ReinforcePlusPlus as ReinforcePlusPlus
from ._tokens import masked_whiten as masked_whiten
from ._tokens import place_outcome as place_outcome
from ._tokens import reinforce_plus_plus as reinforce_plus_plus
from ._tokens import turn_to_tokens as turn_to_tokens
from ._trace import trace_credit as trace_credit
from ._trace import trace_token_advantages as trace_token_advantages
from ._trace import trace_turn_rewards as trace_turn_rewards
from ._tree import rollout_tree_advantages as rollout_tree_advantages
from ._tree import state_action_ids as state_action_ids
from ._turns import AGENT_WEIGHTS as AGENT_WEIGHTS
from ._turns import multi_turn_advantages as multi_turn_advantages

__all__ = [name for name in dir() if not name.startswith("_")]  # what help() lists
