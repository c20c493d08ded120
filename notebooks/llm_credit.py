# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Who gets the credit?
#
# An agent plays a text game: a crown lies in one of six chests, and clues to its colour are spread over four rooms
# (`make_rollouts.py` has the rules). Eight rollouts of each prompt are in `rollouts.jsonl`, by agents of differing
# skill. Five methods say which turns deserve credit:
#
# | method | what a turn is compared with |
# |---|---|
# | GRPO | nothing: every turn gets the outcome of its rollout, compared with its group |
# | multi-turn REINFORCE | the same turn of the other rollouts of the prompt |
# | turn-level GAE | a critic's value of the states before and after |
# | TRACE | how probable the right answer was before and after, on top of GRPO |
# | RTMC | other actions from the same state, in all rollouts of the prompt |
#
# All of them end as `[batch, tokens]` advantages for a policy gradient, with 0 at the tokens that the game wrote.

# %%
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from rltriton_jax import gae, llm

# %% [markdown]
# ## The log

# %%
# A script knows its own folder; a notebook runs in it.
log = Path(globals().get("__file__", "")).parent / "rollouts.jsonl"
rollouts = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
print(f"{len(rollouts)} rollouts on {jax.default_backend()}; one of them:")
for turn in rollouts[2]["turns"]:
    print(f"  {turn['action']}\n      {turn['observation']}")

if not all(len(r["gold_log_probs"]) == len(r["turns"]) + (r["turns"][-1]["tokens"][1] > 0) for r in rollouts):
    raise ValueError("a gold log-probability is missing")

# %% [markdown]
# ## Tokens
#
# A row is the prompt, then the policy's and the game's text in turn. `mask` marks what the policy wrote, and `turn_ids`
# holds the turn that wrote it. White space stands in for a tokenizer.

# %%
rows = []
for r in rollouts:
    row = [-1] * len(r["prompt"].split())
    for t, turn in enumerate(r["turns"]):
        row += [t] * len(turn["action"].split()) + [-1] * len(turn["observation"].split())
    rows.append(row)
batch, tokens, turns = len(rows), max(map(len, rows)), max(len(r["turns"]) for r in rollouts)
turn_ids = np.array([row + [-1] * (tokens - len(row)) for row in rows])
mask = turn_ids >= 0

written = [sum(turn["tokens"][0] for turn in r["turns"]) for r in rollouts]
np.testing.assert_array_equal(mask.sum(axis=1), written)

# %% [markdown]
# ## Turns
#
# The same log by turns, `[batch, turns]`. The answer is the last turn of a rollout, unless the limit came first; TRACE
# counts the others only.


# %%
def by_turn(key):
    return np.array([[turn[key] for turn in r["turns"]] + [0.0] * (turns - len(r["turns"])) for r in rollouts])


rewards, values = by_turn("reward"), by_turn("value")
exists = np.arange(turns) < np.array([[len(r["turns"])] for r in rollouts])
answers = np.array([r["turns"][-1]["command"].startswith("answer") for r in rollouts])
is_answer = exists & ~np.pad(exists, ((0, 0), (0, 1)))[:, 1:] & answers[:, None]
outcomes = np.array([r["outcome"] for r in rollouts])
groups = np.array([r["prompt_id"] for r in rollouts])

np.testing.assert_array_equal(exists.sum(axis=1), turn_ids.max(axis=1) + 1)
np.testing.assert_array_equal(outcomes, (rewards * is_answer).sum(axis=1))

# %% [markdown]
# ## GRPO
#
# One number a rollout, on every token that the policy wrote.

# %%
grpo = llm.group_advantages(outcomes, groups, **llm.GROUP_PRESETS["grpo"])
grpo_tokens = jnp.where(mask, grpo[:, None], 0)

for group in np.unique(groups):
    np.testing.assert_allclose(grpo[groups == group].sum(), 0, atol=1e-5)

# %% [markdown]
# ## Multi-turn REINFORCE
#
# The rest of a rollout's rewards, minus the mean of that over the other rollouts of the prompt at the same turn.

# %%
multi_turn = llm.multi_turn_advantages(rewards, groups, exists)
multi_turn_tokens = llm.turn_to_tokens(multi_turn, turn_ids)

for group in np.unique(groups):
    rest = np.where(exists, multi_turn, 0)[groups == group].sum(axis=0)
    shared = exists[groups == group].sum(axis=0) > 1
    np.testing.assert_allclose(rest[shared], 0, atol=1e-5)

# %% [markdown]
# ## Turn-level GAE
#
# One step is a whole turn, and the advantage goes to all its tokens. The critic is the log's `value`: the chance that
# the best guess is right. The limit on turns is part of the game, so it ends the episode like an answer does.


# %%
def turn_gae(lambda_):
    ends = llm.segment_ends(np.zeros_like(rewards, int), exists)
    options = {"terminated": ends, "mask": exists, "bootstrap_value": 0.0, "time_axis": 1}
    return gae(rewards, values, discount=1.0, lambda_=lambda_, **options)


turn_level = turn_gae(lambda_=0.9).advantages
turn_level_tokens = llm.turn_to_tokens(turn_level, turn_ids)

# %% [markdown]
# With lambda = 1 its targets are the plain sums of the rewards to come.

# %%
to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
np.testing.assert_allclose(turn_gae(lambda_=1.0).targets, np.where(exists, to_come, 0), atol=1e-5)

# %% [markdown]
# ## TRACE
#
# A turn earns what it adds to V = log(d_0 / d), where d = eps - log p(right answer). A turn's credit is the mean of its
# own reward and the next two, plus a share of the outcome near the end of the rollout.

# %%
gold = np.zeros((batch, turns + 1))
for row, r in zip(gold, rollouts):
    row[: len(r["gold_log_probs"])] = r["gold_log_probs"]
tools = exists & ~is_answer
deltas = llm.trace_turn_rewards(gold, turn_mask=tools)
outcome = llm.group_advantages(outcomes, groups, **llm.GROUP_PRESETS["trace"])
credit = llm.trace_credit(deltas, outcome, turn_mask=tools)
tool_ids = np.where(np.take_along_axis(is_answer, np.maximum(turn_ids, 0), axis=1), -1, turn_ids)
trace_tokens = llm.trace_token_advantages(credit, outcome, tool_ids, mask)

# %% [markdown]
# The turn rewards telescope: they sum to V behind the last turn, however many turns there were.

# %%
first, last = gold[:, 0], np.array([r["gold_log_probs"][-1] for r in rollouts])
np.testing.assert_allclose(deltas.sum(axis=1), np.log((0.1 - first) / (0.1 - last)), atol=1e-5)

# %% [markdown]
# ## RTMC
#
# The rollouts of a prompt form a tree: where two came to the same state, their actions are compared by what followed.

# %%
states = llm.state_action_ids([[turn["state"] for turn in r["turns"]] for r in rollouts])
actions = llm.state_action_ids([[turn["command"] for turn in r["turns"]] for r in rollouts])
rtmc = llm.rollout_tree_advantages(rewards, states, actions, groups)
rtmc_tokens = llm.turn_to_tokens(rtmc, turn_ids)

# %% [markdown]
# Without the prior, the advantages of a state sum to 0 over the actions that were taken there, each rollout counted
# once for each action.

# %%
bare = np.asarray(llm.rollout_tree_advantages(rewards, states, actions, groups, prior_count=0))
sums, seen = {}, set()
for b, t in np.argwhere(exists):
    visit = (b, states[b, t], actions[b, t])
    if visit not in seen:
        seen.add(visit)
        place = (groups[b], states[b, t])
        sums[place] = sums.get(place, 0) + bare[b, t]
np.testing.assert_allclose(list(sums.values()), 0, atol=1e-5)

# %% [markdown]
# ## What the policy did not write
#
# All five are exactly 0 there.

# %%
by_method = {
    "GRPO": grpo_tokens,
    "multi-turn REINFORCE": multi_turn_tokens,
    "turn-level GAE": turn_level_tokens,
    "TRACE": trace_tokens,
    "RTMC": rtmc_tokens,
}
for name, advantages in by_method.items():
    if advantages.shape != mask.shape or np.any(np.asarray(advantages)[~mask]):
        raise ValueError(f"{name} does not fit the mask")

# %% [markdown]
# GAE over tokens passes over these tokens too: with `mask`, it is as if their columns were deleted. Here each turn's
# reward stands on its last token.

# %%
next_ids = np.pad(turn_ids, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
token_rewards = np.where(mask & (turn_ids != next_ids), llm.turn_to_tokens(rewards, turn_ids), 0)
token_values = np.asarray(llm.turn_to_tokens(values, turn_ids))
ends = np.asarray(llm.segment_ends(np.zeros_like(turn_ids), mask))
options = {"discount": 0.99, "lambda_": 0.95, "bootstrap_value": 0.0, "time_axis": 1}
skipped = gae(token_rewards, token_values, terminated=ends, mask=mask, **options).advantages

front = np.argsort(~mask, axis=1, kind="stable")
short = [np.take_along_axis(x, front, axis=1) for x in (token_rewards, token_values, ends, mask, np.asarray(skipped))]
deleted = gae(short[0], short[1], terminated=short[2], **options).advantages
np.testing.assert_allclose(np.where(short[3], deleted, 0), short[4], atol=1e-5)

# %% [markdown]
# ## The picture
#
# One prompt, in which the cook is wrong. Each square is a turn: blue for credit, red for blame, in each panel on its
# own scale. The first panel holds the turn rewards of TRACE, before any window or outcome.


# %%
def turn_means(advantages):
    of_turn = turn_ids[:, :, None] == np.arange(turns)
    return (np.asarray(advantages)[:, :, None] * of_turn).sum(axis=1) / np.maximum(of_turn.sum(axis=1), 1)


def draw(axis, name, table, labels):
    top = np.abs(table).max()
    axis.imshow(np.where(exists[chosen], table, np.nan), cmap="RdBu", vmin=-top, vmax=top, aspect="auto")
    for (b, t), label in np.ndenumerate(labels):
        colour = "white" if abs(table[b, t]) > 0.6 * top else "black"
        axis.text(t, b, label, ha="center", va="center", fontsize=6, color=colour)
    axis.set(title=name, xlabel="turn")


# %%
chosen = np.flatnonzero(groups == 1)
commands = [[turn["command"].replace(" ", "\n") for turn in rollouts[b]["turns"]] for b in chosen]
width = max(map(len, commands))
labels = np.array([row + [""] * (turns - len(row)) for row in commands])
panels = {"turn rewards of TRACE": np.asarray(deltas)}
panels |= {name: turn_means(advantages) for name, advantages in by_method.items()}
if not all(np.isfinite(table).all() for table in panels.values()):
    raise ValueError("an advantage is not finite")

# %%
figure, axes = plt.subplots(2, 3, figsize=(16, 8), sharex=True, sharey=True, layout="constrained")
for axis, (name, table) in zip(axes.flat, panels.items()):
    draw(axis, name, table[chosen], labels)
names = [f"{rollouts[b]['agent']} ({'right' if rollouts[b]['outcome'] else 'wrong'})" for b in chosen]
axes[0, 0].set(yticks=range(len(chosen)), yticklabels=names, xlim=(-0.5, width - 0.5))
plt.show()

# %% [markdown]
# GRPO praises every turn of the two planners alike and blames every turn of the others. Multi-turn REINFORCE and GAE
# follow the rewards: the commands that do not work cost the wanderer more. TRACE adds what the clues of the next turns
# were worth: most where the ledger is near, less than nothing where the cook is. RTMC splits the rollouts where they
# part: to go to the kitchen is the asker's one turn with credit, since planners go there too; the look around an empty
# hall has the most, since only planners begin with it.
