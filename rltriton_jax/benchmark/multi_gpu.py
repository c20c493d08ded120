"""Several GPUs of one host against one of them: `python -m rltriton_jax.benchmark.multi_gpu --json results.json`."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax

from . import _ppo

COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def data(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[jax.Array, ...]:
    """Rewards, values, flags and log ratios of `shape`, made where they will be used."""

    def make(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 4)
        numbers = [jax.random.normal(k, shape) * 0.3 for k in keys[:3]]
        return numbers[0], numbers[1], jax.random.uniform(keys[3], shape) < 0.01, numbers[2]

    return jax.jit(make, out_shardings=sharding)(jax.random.key(0))


def gae(time_axis: int, axis_name: str | None, rewards: Any, values: Any, ends: Any, _: Any) -> Any:
    return rltriton_jax.gae(
        rewards, values, bootstrap_value=0.5, terminated=ends, discount=0.99, lambda_=0.95, time_axis=time_axis,
        axis_name=axis_name,
    ).advantages  # fmt: skip


def vtrace(time_axis: int, axis_name: str | None, rewards: Any, values: Any, ends: Any, log_rhos: Any) -> Any:
    return rltriton_jax.vtrace(
        rewards, values, bootstrap_value=0.5, terminated=ends, log_rhos=log_rhos, discount=0.99, time_axis=time_axis,
        axis_name=axis_name,
    ).targets  # fmt: skip


def gradient(f: Callable) -> Callable:
    def pulled(rewards: Any, values: Any, ends: Any, log_rhos: Any) -> Any:
        out, pull = jax.vjp(lambda r, v: f(r, v, ends, log_rhos), rewards, values)
        return sum(pull(out))

    return pulled


def chained(f: Callable, calls: int) -> Callable:
    """`calls` of f in one program, each on the result of the one before."""

    def run(rewards: Any, *rest: Any) -> Any:
        return jax.lax.fori_loop(0, calls, lambda _, r: 0.5 * f(r, *rest), rewards)

    return run


def seconds(f: Callable, args: Sequence[jax.Array], calls: int, repetitions: int = 7) -> float:
    """Median time of one call, within a program of many."""
    program = jax.jit(chained(f, calls))
    jax.block_until_ready(program(*args))
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def compare(
    name: str, f: Callable, local: Callable, shape: tuple[int, ...], spec: P, mesh: Mesh, calls: int, weak: bool
) -> dict[str, Any]:
    """One row: f on all GPUs against `local` on one, of a share of the work (`weak`) or of the whole."""
    sharded = data(shape, NamedSharding(mesh, spec))
    first = Mesh(mesh.devices.reshape(-1)[:1], mesh.axis_names)
    whole = jax.device_put(sharded, NamedSharding(first, P()))
    program = jax.jit(f)
    got, want = program(*sharded), jax.jit(local)(*whole)
    error = float(jnp.max(jnp.abs(jax.device_put(got, want.sharding) - want)))
    text = program.lower(*sharded).compile().as_text() or ""
    axis, count = next(i for i, s in enumerate(spec) if s is not None), mesh.devices.size
    share = whole
    if weak:
        share = tuple(jax.lax.slice_in_dim(x, 0, shape[axis] // count, axis=axis) for x in whole)
    many = seconds(f, sharded, calls)
    del sharded
    one = seconds(local, share, calls)
    return {
        "name": name, "shape": shape, "sharded": str(spec), "gpus": count, "us_one": one * 1e6, "us_all": many * 1e6,
        "speedup": one / many * (count if weak else 1), "scaling": "weak" if weak else "strong", "error": error,
        "collectives": len(COLLECTIVE.findall(text)),
    }  # fmt: skip


def ppo_update(mesh: Mesh, envs: int, steps: int) -> dict[str, Any]:
    """A PPO update with environments over the GPUs, against the same update on one."""
    keys = jax.random.split(jax.random.key(1), 8)
    params = _ppo.parameters(keys[:4], (8, 128, 128), 4, scale=0.1, biases=False)

    def update(params: Any, obs: Any, actions: Any, rewards: Any, ends: Any) -> Any:
        log_probs, values = _ppo.network(params, obs)
        old = _ppo.chosen(log_probs, actions)
        advantages, targets = rltriton_jax.gae(
            rewards, values, bootstrap_value=0.0, terminated=ends, discount=0.99, lambda_=0.95
        )
        for _ in range(2):
            grads = jax.grad(_ppo.loss)(params, obs, actions, old, advantages, targets)
            params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        return params

    batch = (
        jax.random.normal(keys[4], (steps, envs, 8)), jax.random.randint(keys[5], (steps, envs), 0, 4),
        jax.random.normal(keys[6], (steps, envs)), jax.random.uniform(keys[7], (steps, envs)) < 0.02,
    )  # fmt: skip
    results = {}
    for key, group in (("one", Mesh(mesh.devices.reshape(-1)[:1], mesh.axis_names)), ("all", mesh)):
        placed = jax.device_put(batch, NamedSharding(group, P(None, "x")))
        start = jax.device_put(params, NamedSharding(group, P()))
        run = jax.jit(update)
        out = jax.block_until_ready(run(start, *placed))
        times = []
        for _ in range(10):
            begin = time.perf_counter()
            jax.block_until_ready(run(start, *placed))
            times.append(time.perf_counter() - begin)
        results[key] = (jax.device_get(out), statistics.median(times))
    pairs = zip(jax.tree.leaves(results["one"][0]), jax.tree.leaves(results["all"][0]), strict=True)
    one, many = results["one"][1], results["all"][1]
    return {
        "name": "ppo update", "shape": (steps, envs), "sharded": "envs", "gpus": mesh.devices.size, "us_one": one * 1e6,
        "us_all": many * 1e6, "speedup": one / many, "scaling": "strong", "collectives": None,
        "error": max(float(abs(a - b).max()) for a, b in pairs),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rltriton_jax.benchmark.multi_gpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--small", action="store_true", help="small arrays, to try it out")
    options = parser.parse_args(argv)
    devices = jax.devices()
    n = len(devices)
    if n < 2:
        parser.error(f"this needs at least two devices of one host; JAX sees {n}")
    mesh = jax.make_mesh((n,), ("x",))
    calls, by = (2, 256) if options.small else (400, 1)  # so many that starting a program on all GPUs counts for little
    rows = []

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            f"{row['name']:24s} {row['shape']!s:20s} one {row['us_one']:9.1f} us, {n} GPUs {row['us_all']:9.1f} us, "
            f"{row['speedup']:.2f} x ({row['scaling']}), error {row['error']:.1e}, collectives {row['collectives']}",
            flush=True,
        )
        if options.json:
            device = {"device": devices[0].device_kind, "gpus": n, "jax": jax.__version__}
            options.json.write_text(json.dumps({**device, "rows": rows}, indent=1) + "\n")

    for name, f in (("gae", gae), ("vtrace", vtrace)):
        for layout, shape, spec, axis in (
            ("time-major", (128, n * 262144 // by), P(None, "x"), 0),
            ("batch-major", (n * 262144 // by, 128), P("x", None), 1),
        ):
            whole = partial(f, axis, None)
            show(compare(f"{name} {layout}", whole, whole, shape, spec, mesh, calls, weak=True))
            back = gradient(whole)
            show(compare(f"{name} {layout} gradient", back, back, shape, spec, mesh, calls, weak=True))
    for batch, length in ((16, 1 << 20), (64, 1 << 17)):
        shape, spec = (batch, n * length // by), P(None, "x")
        over_time = jax.shard_map(partial(gae, 1, "x"), mesh=mesh, in_specs=(spec,) * 4, out_specs=spec)
        alone = partial(gae, 1, None)
        show(compare("gae over time", over_time, alone, shape, spec, mesh, calls, weak=False))
        show(
            compare(
                "gae over time, gradient", gradient(over_time), gradient(alone), shape, spec, mesh, calls, weak=False
            )
        )
    show(ppo_update(mesh, n * 16384 // by, 32))
    wrong = [row["name"] for row in rows if not row["error"] < 1e-3]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
