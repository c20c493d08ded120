"""The LLM functions as float64 NumPy loops, written from the formulas: dictionaries and one member after another."""

from collections import defaultdict

import numpy as np


def _rows(ids):
    members = defaultdict(list)
    for row, key in enumerate(ids):
        if key is not None:
            members[key].append(row)
    return list(members.values())


def group_advantages(
    scores,
    group_ids=None,
    *,
    group_size=None,
    baseline="mean",
    scale="group",
    ddof=1,
    eps=1e-6,
    singleton="zero",
    lengths=None,
    mask=None,
):
    keys = []
    for row in range(len(scores)):
        key = row // group_size if group_ids is None else group_ids[row]
        dead = key == -1 or (mask is not None and not mask[row])
        keys.append(None if dead else key)
    return _grouped(np.asarray(scores, np.float64), keys, baseline, scale, ddof, eps, singleton, lengths)


def _grouped(scores, keys, baseline, scale, ddof, eps, singleton, lengths=None):
    out = np.zeros(len(scores))
    live = [row for row, key in enumerate(keys) if key is not None]
    for members in _rows(keys):
        s = scores[members]
        asked = baseline != "none" or scale is not None
        if len(members) == 1 and asked:
            out[members] = s if singleton == "raw" else 0
            continue
        if baseline == "mean":
            a = s - np.mean(s)
        elif baseline == "leave_one_out":
            a = np.array([s[i] - np.mean(np.delete(s, i)) for i in range(len(s))])
        elif baseline == "length_weighted":
            weights = np.asarray(lengths, np.float64)[members]
            a = s - np.sum(weights * s) / np.sum(weights) if np.sum(weights) else np.zeros(len(s))
        else:
            a = s
        if asked and s.max() == s.min():
            a = np.zeros(len(s))
        if scale is not None:
            compared = s if scale == "group" else scores[live]
            a = np.zeros(len(s)) if compared.max() == compared.min() else a / (np.std(compared, ddof=ddof) + eps)
        out[members] = a
    return out


def masked_whiten(x, mask, *, ddof=1, eps=1e-8, shift_mean=True):
    x, live = np.asarray(x, np.float64), np.asarray(mask) != 0
    out = np.zeros(x.shape)
    if live.sum() < 2:
        return out
    mean, var = np.mean(x[live]), np.var(x[live], ddof=ddof)
    out[live] = (x[live] - mean) / np.sqrt(var + eps) + (0 if shift_mean else mean)
    return out


def _returns(rewards, discount, live):
    out, running = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        if live[t]:
            running = rewards[t] + discount * running
            out[t] = running
    return out


def reinforce_plus_plus(rewards, mask, *, discount=1.0, ddof=1, eps=1e-8):
    returns = np.array([_returns(r, discount, m) for r, m in zip(rewards, mask, strict=True)])
    return masked_whiten(returns, mask, ddof=ddof, eps=eps), returns


def place_outcome(scores, mask):
    out = np.zeros(np.shape(mask))
    for row, score in enumerate(scores):
        live = np.flatnonzero(mask[row])
        if len(live):
            out[row, live[-1]] = score
    return out


def trace_turn_rewards(gold_log_probs, *, eps=0.1, turn_mask=None):
    gold = np.asarray(gold_log_probs, np.float64)
    out = np.zeros((gold.shape[0], gold.shape[1] - 1))
    for row, turn in np.ndindex(out.shape):
        if turn_mask is None or turn_mask[row][turn]:
            out[row, turn] = np.log((eps - gold[row, turn]) / (eps - gold[row, turn + 1]))
    return out


def trace_credit(deltas, outcome_advantage, *, window=3, discount=0.8, terminal_scale=2.0, turn_mask=None):
    out = np.zeros(np.shape(deltas))
    for row in range(len(deltas)):
        real = np.flatnonzero(turn_mask[row]) if turn_mask is not None else np.arange(len(deltas[row]))
        last = len(real) - 1
        for t, turn in enumerate(real):
            end = min(t + window - 1, last)
            total = sum(discount ** (u - t) * deltas[row][real[u]] for u in range(t, end + 1))
            weight = sum(discount ** (u - t) for u in range(t, end + 1))
            out[row, turn] = total / weight if window else 0
            if end == last or t == last:
                out[row, turn] += terminal_scale * discount ** (last + 1 - t) * outcome_advantage[row]
    return out


def trace_token_advantages(credit, outcome_advantage, turn_ids, mask, *, credit_weight=0.2):
    out = np.zeros(np.shape(turn_ids))
    for row, token in np.ndindex(out.shape):
        if mask[row][token]:
            turn = turn_ids[row][token]
            out[row, token] = outcome_advantage[row] + (credit_weight * credit[row][turn] if turn >= 0 else 0)
    return out


def rollout_tree_advantages(
    rewards, state_ids, action_ids, group_ids, *, discount=0.99, prior_count=2, scale=None, eps=0.0
):
    rewards = np.asarray(rewards, np.float64)
    rollouts, turns = rewards.shape
    out = np.zeros((rollouts, turns))
    for group in sorted(set(map(int, group_ids)) - {-1}):
        first, totals, visited = {}, [], []
        for i in range(rollouts):
            if group_ids[i] != group:
                continue
            live = [state_ids[i][t] >= 0 and action_ids[i][t] >= 0 for t in range(turns)]
            returns = _returns(rewards[i], discount, live)
            if any(live):
                totals.append(sum(rewards[i, t] for t in range(turns) if live[t]))
            for t in range(turns):
                if live[t]:
                    pair = (int(state_ids[i][t]), int(action_ids[i][t]))
                    first.setdefault(pair, {}).setdefault(i, returns[t])
                    visited.append((i, t, pair))
        if not visited:
            continue
        prior = np.mean(totals)
        q = {pair: np.mean(list(by_rollout.values())) for pair, by_rollout in first.items()}
        value = {}
        for state in {s for s, _ in first}:
            counts = {pair: len(first[pair]) for pair in first if pair[0] == state}
            n = sum(counts.values())
            v = sum(counts[pair] * q[pair] for pair in counts) / n
            value[state] = (n * v + prior_count * prior) / (n + prior_count)
        advantages = np.array([q[pair] - value[pair[0]] for _, _, pair in visited])
        if scale == "group":
            advantages = _grouped(advantages, [0] * len(advantages), "none", "group", 0, eps, "zero")
        for (i, t, _), advantage in zip(visited, advantages, strict=True):
            out[i, t] = advantage
    return out


def step_group_advantages(scores, state_ids, group_ids, **options):
    scores = np.asarray(scores, np.float64)
    options = {"baseline": "mean", "scale": "group", "ddof": 1, "eps": 1e-6, "singleton": "zero", **options}
    keys = []
    for i, t in np.ndindex(scores.shape):
        dead = group_ids[i] == -1 or state_ids[i][t] == -1
        keys.append(None if dead else (int(group_ids[i]), int(state_ids[i][t])))
    return _grouped(scores.reshape(-1), keys, **options).reshape(scores.shape)


def multi_turn_advantages(
    turn_rewards, group_ids, turn_mask=None, *, discount=1.0, agent_ids=None, agent_weights=(1.0, 0.3, 0.5)
):
    rewards = np.asarray(turn_rewards, np.float64)
    batch, turns = rewards.shape
    returns, keys, weights = np.zeros((batch, turns)), [], np.zeros((batch, turns))
    for i in range(batch):
        if group_ids[i] != -1:
            returns[i] = _returns(rewards[i], discount, [True] * turns)
        for t in range(turns):
            agent = 0 if agent_ids is None else int(np.broadcast_to(np.asarray(agent_ids).T, (turns, batch)).T[i, t])
            dead = group_ids[i] == -1 or agent == -1 or (turn_mask is not None and not turn_mask[i][t])
            keys.append(None if dead else (agent, int(group_ids[i]), t))
            weights[i, t] = 0 if dead else agent_weights[agent]
    grouped = _grouped(returns.reshape(-1), keys, "leave_one_out", None, 1, 0.0, "raw")
    return grouped.reshape(batch, turns) * weights


def turn_to_tokens(turn_values, turn_ids):
    out = np.zeros(np.shape(turn_ids))
    for row, token in np.ndindex(out.shape):
        if turn_ids[row][token] >= 0:
            out[row, token] = turn_values[row][turn_ids[row][token]]
    return out


def segment_ends(segment_ids, mask=None):
    out = np.zeros(np.shape(segment_ids), bool)
    for row in range(len(segment_ids)):
        ids = segment_ids[row]
        live = [t for t in range(len(ids)) if ids[t] >= 0 and (mask is None or mask[row][t])]
        for n, here in enumerate(live):
            out[row, here] = n + 1 == len(live) or ids[live[n + 1]] != ids[here]
    return out
