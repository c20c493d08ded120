"""A roll-out of CartPole with a time limit, by a behaviour policy that is not the target policy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ._data import Data

TIME_LIMIT = 60
MODES = ("next-step", "same-step")
_UPRIGHT = np.array([0.1, 0.3, 6.0, 3.0])  # pushes towards the side to which the pole falls


class _Agent:
    """Linear policies of two actions, and a small random network for their action values."""

    def __init__(self, rng: np.random.Generator):
        self.hidden = rng.normal(size=(4, 16))
        self.out = rng.normal(size=(16, 2))
        self.behaviour, self.target = 0.4 * _UPRIGHT, 0.6 * _UPRIGHT + 0.3 * rng.normal(size=4)

    def policy(self, weights: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """The probabilities of both actions, on a last axis."""
        right = 1 / (1 + np.exp(-observations @ weights))
        return np.stack([1 - right, right], -1)

    def q(self, observations: np.ndarray) -> np.ndarray:
        return np.tanh(observations @ self.hidden) @ self.out

    def value(self, observations: np.ndarray) -> np.ndarray:
        """The expectation of q under the target policy."""
        return np.sum(self.policy(self.target, observations) * self.q(observations), -1)


def make(envs: int, mode: str) -> Any:
    import gymnasium

    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode(mode.title().replace("-", ""))},
        max_episode_steps=TIME_LIMIT,
    )


def play(env: Any, steps: int, seed: int) -> Data:
    """A roll-out of `steps` steps, whichever way the vector environment resets."""
    from gymnasium.vector import AutoresetMode

    same_step = env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    rng = np.random.default_rng(seed)
    agent = _Agent(rng)
    observation, _ = env.reset(seed=seed)
    done = np.zeros(env.num_envs, bool)
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(steps):
        action = (rng.random(env.num_envs) < agent.policy(agent.behaviour, observation)[:, 1]).astype(int)
        following, reward, terminated, truncated, info = env.step(action)
        true_next = following.copy()
        if same_step and "final_obs" in info:
            # `following` is already the first observation of the next episode there
            ended = info["_final_obs"]
            true_next[ended] = np.stack(info["final_obs"][ended])
        # in the other mode the step behind an episode's end only resets: no transition of any episode
        live = np.ones_like(done) if same_step else ~done
        row = dict(observation=observation, true_next=true_next, action=action, reward=reward)
        for name, x in {**row, "terminated": terminated, "truncated": truncated, "mask": live}.items():
            rows.setdefault(name, []).append(np.array(x))
        observation, done = following, terminated | truncated
    return _data(agent, {name: np.stack(column) for name, column in rows.items()})


def _data(agent: _Agent, rows: dict[str, np.ndarray]) -> Data:
    observation, action, mask = rows["observation"], rows["action"][..., None], rows["mask"]
    taken = lambda x: np.take_along_axis(x, action, -1)[..., 0]
    probability = taken(agent.policy(agent.target, observation))
    arrays = dict(
        rewards=rows["reward"],
        values=agent.value(observation),
        next_values=agent.value(rows["true_next"]),
        q_taken=taken(agent.q(observation)),
        probability=probability,
        log_rhos=np.log(probability / taken(agent.policy(agent.behaviour, observation))),
        inputs=observation,
        terminated=rows["terminated"],
        truncated=rows["truncated"],
        mask=mask,
    )
    counts = f"{rows['terminated'].sum()} terminated, {rows['truncated'].sum()} truncated at {TIME_LIMIT} steps"
    resets = f", {(~mask).sum()} resetting steps masked" if not mask.all() else ""
    origin = f"CartPole-v1, {mask.shape[0]} steps x {mask.shape[1]} environments: {counts}{resets}"
    return Data(**{name: jnp.asarray(x) for name, x in arrays.items()}, origin=origin)
