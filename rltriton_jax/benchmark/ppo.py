"""Whole PPO updates with three ways to compute GAE: `python -m rltriton_jax.benchmark.ppo --json results.json`."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rltriton_jax

from .. import _reference
from . import _gate, _ppo, _report, _show, _timing
from ._estimators import DISCOUNT, LAMBDA
from ._measure import Clock, Row
from ._peers import by_associative_scan

UNROLL = 16  # PureJaxRL's
NETWORKS: dict[str, dict[str, Any]] = {
    "64x64": dict(hidden=(64, 64), epochs=4, minibatches=4),
    "16": dict(hidden=(16,), epochs=1, minibatches=1),
}
ENVS, STEPS, SMALL = (2048, 8192, 32768), (128, 16), (64, 16)
COLUMNS = 16  # of the gate's loops in Python
# DRIFT is wider: an action or a clipped ratio that rounding flips moves all that follows
TOLERANCE, DRIFT = _gate.TOLERANCE["float32"], 1e-2
CALLS = 100  # of GAE in one program


def by_scan(rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any) -> Any:
    """One step of time after another, as PureJaxRL does, with next values and a time limit."""

    def step(advantage: Any, row: Any) -> Any:
        reward, value, next_value, ended, cut = row
        error = reward + DISCOUNT * next_value * (1 - ended) - value
        advantage = error + DISCOUNT * LAMBDA * (1 - (ended | cut)) * advantage
        return advantage, advantage

    rows = rewards, values, next_values, terminated, truncated
    _, advantages = jax.lax.scan(step, jnp.zeros_like(rewards[-1]), rows, reverse=True, unroll=UNROLL)
    return advantages, advantages + values


def by_tree(rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any) -> Any:
    """The same formula over whole arrays."""
    errors = rewards + DISCOUNT * next_values * (1 - terminated) - values
    advantages = by_associative_scan(DISCOUNT * LAMBDA * (1 - (terminated | truncated)), errors, 0, True)
    return advantages, advantages + values


def ours(rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any) -> Any:
    return rltriton_jax.gae(
        rewards, values, next_values=next_values, terminated=terminated, truncated=truncated, discount=DISCOUNT,
        lambda_=LAMBDA,
    )  # fmt: skip


BASE = "lax.scan"  # the others are compared with it
VARIANTS: dict[str, _ppo.Gae] = {BASE: by_scan, "lax.associative_scan": by_tree, "rltriton_jax": ours}


def advantage_error(batch: _ppo.Batch, got: Sequence[Any], base: Sequence[Any]) -> float:
    """How far advantages and targets are from those of BASE, and in some columns from a float64 loop over time."""
    at = np.unique(np.linspace(0, batch.rewards.shape[1] - 1, COLUMNS).astype(int))
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    columns = {name: np.asarray(x[:, at]) for name, x in zip(names, batch.operands(), strict=True)}
    loop = _reference.gae(**columns, discount=DISCOUNT, lambda_=LAMBDA)
    pairs = [(x, y) for x, y in zip(got, base, strict=True)]
    pairs += [(x[:, at], y) for x, y in zip(got, loop, strict=True)]
    return max(_gate._error(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs)


def drift(got: _ppo.State, base: _ppo.State, before: _ppo.State) -> float:
    """How far the results of two updates are apart, as a part of the way that the second one went."""

    def distance(a: _ppo.Params, b: _ppo.Params) -> float:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return float(np.sqrt(sum(np.sum((np.asarray(x, np.float64) - np.asarray(y)) ** 2) for x, y in pairs)))

    # Adam's first step is blind to the size of the gradient: its mean is compared too
    three = [(state.params, state.moments.first) for state in (got, base, before)]
    parts = [distance(a, b) / max(distance(b, c), np.finfo(float).tiny) for a, b, c in zip(*three, strict=True)]
    return max(part if np.isfinite(part) else np.inf for part in parts)


def alone(gae: _ppo.Gae, operands: tuple[Any, ...]) -> _timing.Timing:
    """A call of GAE among many in one program, each on the results of the one before."""

    def many(fed: Any, fixed: Any) -> Any:
        def twice(_: Any, carry: Any) -> Any:
            for _ in range(2):  # the second call writes where the first has read: a loop of single calls needs copies
                # without the barrier, XLA computes once for all calls what depends on the flags alone
                carry = tuple(gae(*jax.lax.optimization_barrier((*carry, *fixed))))
            return carry  # these may overflow; the time does not depend on them

        return jax.lax.fori_loop(0, CALLS // 2, twice, fed)

    args = operands[:2], operands[2:]
    spent = _timing.call_time(jax.jit(many).lower(*args).compile(), [args])
    low, median, high = (x / CALLS for x in (spent.low, spent.median, spent.high))
    return spent._replace(low=low, median=median, high=high, method=f"fori_loop of {CALLS}, {spent.method}")


def measure(setting: _ppo.Setting, rounds: int, seed: int = 0) -> list[Row]:
    """A row for each variant; one that is wrong is not timed."""
    start = jax.jit(functools.partial(_ppo.start, setting))
    key = jax.random.key(seed)
    before = start(key)

    # This program also fills XLA's cache of tuned matrix products, which else the first variant would pay for.
    @jax.jit
    def gate(state: _ppo.State) -> Any:
        state, batch = _ppo.roll_out(setting, state)
        outs = {name: tuple(gae(*batch.operands())) for name, gae in VARIANTS.items()}
        return batch, outs, _ppo.learn(setting, state, batch, *outs[BASE])

    batch, outs, base = gate(before)
    flags = {name: int(jnp.sum(getattr(batch, name))) for name in ("terminated", "truncated")}
    rows: dict[str, Row] = {}
    programs, states = {}, {}
    for name, gae in VARIANTS.items():
        sizes = {"envs": setting.envs, "steps": setting.steps, "hidden": list(setting.hidden)}
        row: Row = {**sizes, "epochs": setting.epochs, "minibatches": setting.minibatches, **flags, "gae": name}
        started = time.perf_counter()
        program = jax.jit(functools.partial(_ppo.update, setting, gae), donate_argnums=0).lower(before).compile()
        row["compile_s"] = time.perf_counter() - started
        states[name] = program(start(key))
        row["advantage_error"] = advantage_error(batch, outs[name], outs[BASE])
        row["parameter_error"] = drift(states[name], base, before)
        faults = [
            f"{what} differ by {row[field]:.2g} of {whole} (allowed: {most:g})"
            for what, field, whole, most in (
                ("advantages or targets", "advantage_error", "the greatest", TOLERANCE),
                ("parameters or gradients of one update", "parameter_error", "their change", DRIFT),
            )
            if not row[field] <= most
        ]
        rows[name] = {**row, "status": "WRONG" if faults else "ok", "why": "; ".join(faults)}
        if not faults:
            programs[name] = program
    for name, timing in interleaved(programs, states, rounds).items():
        by_itself = alone(VARIANTS[name], batch.operands())
        rows[name].update(
            update=timing._asdict(),
            gae_alone=by_itself._asdict(),
            share=by_itself.median / timing.median,
            env_steps_per_s=setting.envs * setting.steps / timing.median * 1e6,
        )
    return list(rows.values())


def interleaved(programs: dict[str, Any], states: dict[str, _ppo.State], rounds: int) -> dict[str, _timing.Timing]:
    """Each round runs every program once, and begins with another one: what drifts hits all alike."""
    names = list(programs)
    walls: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds if names else 0):
        first = k % len(names)
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            states[name] = jax.block_until_ready(programs[name](states[name]))
            walls[name].append(time.perf_counter() - started)
    return {name: _timing._summary(spent, "one update, waited for") for name, spent in walls.items()}


HEADS = (
    "network, envs x steps", "GAE", "update ms", "quartiles", "speed-up", "GAE alone us", "share of GAE", "env steps/s",
    "compile s", "errors", "note",
)  # fmt: skip


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The rows of the table, a blank first cell where the sizes are those of the row above."""
    found = []
    base: Row = {}
    for row in rows:
        first = row["gae"] == BASE
        base = row if first else base
        cells = [f"{row['network']}, {row['envs']} x {row['steps']}" if first else "", row["gae"]]
        if "update" in row:
            low, median, high = (row["update"][k] / 1e3 for k in ("low", "median", "high"))
            faster = f"{base['update']['median'] / row['update']['median']:.3f}x" if "update" in base else ""
            cells += [f"{median:.3f}", f"{low:.3f}-{high:.3f}", faster, f"{row['gae_alone']['median']:.1f}"]
            cells += [f"{row['share']:.2%}", f"{row['env_steps_per_s']:.3g}"]
        else:
            cells += [""] * 6
        errors = f"{row['advantage_error']:.0e} {row['parameter_error']:.0e}"
        note = "" if row["status"] == "ok" else f"{row['status']}: {row['why']}"
        found.append([*cells, f"{row['compile_s']:.2f}", errors, note])
    return found


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m rltriton_jax.benchmark.ppo",
        description="Times whole updates of PPO on a CartPole in JAX (roll-out, GAE, epochs of minibatches: one program), "
        "with GAE by lax.scan, by lax.associative_scan and by rltriton_jax, which on a GPU runs its Triton kernels. "
        "Before, it checks that all three give the same advantages, targets and parameters; it exits with 1 if not.",
    )
    for option, default, text in (
        ("--envs", ENVS, "this many environments"),
        ("--steps", STEPS, "roll-outs of this many steps"),
    ):
        several = f"{text}; may be repeated (default: {', '.join(map(str, default))})"
        p.add_argument(option, type=int, action="append", metavar="N", help=several)
    p.add_argument(
        "--network",
        choices=NETWORKS,
        action="append",
        help="only this one, may be repeated: two layers of 64 with 4 epochs of 4 minibatches, or one layer of 16 with "
        "1 epoch of 1, where GAE weighs most",
    )
    p.add_argument("--rounds", type=int, help="updates of each variant to time, taken in turn (default: 15)")
    p.add_argument("--small", action="store_true", help="{} environments, {} steps, 3 rounds: to try it".format(*SMALL))
    p.add_argument("--budget", type=float, metavar="SECONDS", help="begin no more sizes after this time")
    p.add_argument("--seed", type=int, default=0, help="of parameters and environments (default: %(default)s)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    return p


def settings(p: argparse.ArgumentParser, args: argparse.Namespace) -> list[tuple[str, _ppo.Setting]]:
    """What the arguments choose, with the name of the network."""
    found = []
    for steps in args.steps or ([SMALL[1]] if args.small else STEPS):
        for envs in args.envs or ([SMALL[0]] if args.small else ENVS):
            if min(envs, steps) < 1:
                p.error("--envs and --steps must be at least 1")
            for name in args.network or NETWORKS:
                setting = _ppo.Setting(envs=envs, steps=steps, **NETWORKS[name])
                if envs * steps % setting.minibatches:
                    p.error(
                        f"{setting.minibatches} minibatches do not divide {envs} x {steps} rows; change --envs or --steps"
                    )
                found.append((name, setting))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """0 if all variants agree, 1 if not or if a size failed, 2 for arguments that cannot be used."""
    p = parser()
    args = p.parse_args(argv)
    chosen = settings(p, args)
    rounds = args.rounds if args.rounds is not None else 3 if args.small else 15
    if rounds < 1:
        p.error("--rounds must be at least 1")
    clock = Clock(args.budget)
    rows: list[Row] = []
    about = {**_report.environment(), "rounds": rounds, "sizes_left": len(chosen), "sizes_failed": []}
    with _show.progress(len(chosen)) as move:
        for done, (name, setting) in enumerate(chosen):
            if clock.over():
                break
            label = f"{name}, {setting.envs} x {setting.steps}"
            move(done, label)
            try:
                rows += [{"network": name, **row} for row in measure(setting, rounds, args.seed)]
            except Exception as error:  # a size too large for the device must not lose the others
                about["sizes_failed"].append(f"{label}: {type(error).__name__}: {str(error)[:300]}")
            about["sizes_left"] = len(chosen) - done - 1
            if args.json:
                _report.write(args.json, about, rows)
    print(f"{about['device']}, jax {jax.__version__}")
    _show.table("PPO updates", HEADS, lines(rows))
    bad = [r for r in rows if r["status"] != "ok"]
    wrong = [f"{r['network']}, {r['envs']} x {r['steps']}: {r['gae']} {r['status']}: {r['why']}" for r in bad]
    for line in wrong + about["sizes_failed"]:
        print(line, file=sys.stderr)
    if about["sizes_left"]:
        print(f"{about['sizes_left']} of {len(chosen)} sizes were left when the budget was used", file=sys.stderr)
    return 1 if bad or about["sizes_failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
