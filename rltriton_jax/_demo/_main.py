"""The command line of the main job."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from .._backends import IMPLEMENTATIONS
from .._extras import install
from ..benchmark._cli import shape
from . import _data, _measure
from ._calls import CALLS
from ._measure import BASE, INTERPRETED, TOLERANCE, Comparison
from ._rollout import MODES, make, play


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m rltriton_jax",
        description="Runs every estimator by every implementation that this machine has, on a roll-out of CartPole "
        "with a time limit or on random data. Prints how far each is from a float64 loop and from "
        "lax.associative_scan, and how long a call takes. Exits with 1 if anything disagrees.",
    )
    p.add_argument("--shape", type=shape, metavar="TxB", help="random data of this size, no roll-out: 128x4096")
    p.add_argument("--steps", type=int, default=128, help="of the roll-out (default: %(default)s)")
    p.add_argument("--envs", type=int, default=16, help="environments of the roll-out (default: %(default)s)")
    p.add_argument("--autoreset", choices=MODES, default=MODES[0], help="of the environments (default: %(default)s)")
    p.add_argument("--dtype", choices=TOLERANCE, default="float32", help="of the data (default: %(default)s)")
    for option, names in (("--implementation", IMPLEMENTATIONS), ("--estimator", CALLS)):
        text = f"only this one, may be repeated: {', '.join(names)}"
        p.add_argument(option, choices=names, metavar="NAME", action="append", help=text)
    p.add_argument("--seed", type=int, default=0, help="of data, policies and values (default: %(default)s)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write every result")
    return p


def _missing(args: argparse.Namespace) -> list[str]:
    """The packages of the extra that this run needs and that do not import."""
    missing = []
    for name in ("rich", "gymnasium") if args.shape is None else ("rich",):
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return missing


def _implementations(p: argparse.ArgumentParser, asked: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """Those to run, and of the others why they cannot. One that is asked for must run."""
    order = [BASE, *(name for name in IMPLEMENTATIONS if name != BASE)]
    reasons = {name: reason for name in order if (reason := _measure.why_not(name))}
    for name in asked or ():
        if name in reasons:
            p.error(f"implementation {name} cannot run here: {reasons[name]}")
    names = [name for name in order if name not in reasons and name in (asked or order)]
    return names, {} if asked else reasons


def _run(p: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from . import _report

    names, left_out = _implementations(p, args.implementation)
    estimators = [name for name in CALLS if name in (args.estimator or CALLS)]
    if args.shape:
        data = _data.draw(args.shape, args.dtype, args.seed)
    else:
        env = make(args.envs, args.autoreset)
        data = play(env, args.steps, args.seed).typed(args.dtype)
        env.close()
    small = data.cut(*INTERPRETED)
    compared = {}
    for estimator in estimators:
        by_shape: dict[tuple[int, int], Comparison] = {}
        for name in names:
            used = small if name == "interpret" else data
            if used.shape not in by_shape:
                by_shape[used.shape] = Comparison(estimator, used, args.seed)
            compared[estimator, name] = by_shape[used.shape]
    results = []
    with _report.bar(2 * len(compared)) as advance:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # lax.associative_scan takes XLA seconds to compile
            jobs = [pool.submit(comparison.prepare(name)) for (_, name), comparison in compared.items()]
            for (estimator, name), job in zip(compared, jobs, strict=True):
                advance(f"{estimator}, {name}: compiling")
                job.result()
        for (estimator, name), comparison in compared.items():
            advance(f"{estimator}, {name}")
            results.append(comparison.run(name))
    _report.show(results, data.origin, data.shape, args.dtype, left_out)
    if args.json:
        described = dict(data=data.origin, shape=data.shape, dtype=args.dtype, seed=args.seed)
        _report.write(args.json, results, **described, did_not_run=left_out)
    return 0 if all(r.ok for r in results) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything agrees, 1 if something does not, 2 for what cannot run."""
    p = parser()
    args = p.parse_args(argv)
    if min(args.steps, args.envs) < 1:
        p.error("--steps and --envs must be at least 1")
    if missing := _missing(args):
        print(f"python -m rltriton_jax needs {' and '.join(missing)}: {install('demo')}", file=sys.stderr)
        if missing == ["gymnasium"]:
            print("Without gymnasium, --shape 128x4096 runs on random data.", file=sys.stderr)
        return 2
    with jax.enable_x64(args.dtype == "float64"):
        return _run(p, args)
