"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import _report, _show
from ._cases import LAYOUTS, SUITES, Case
from ._estimators import ESTIMATORS
from ._peers import NAMES


def shape(text: str) -> tuple[int, int]:
    """TxB, as 128x4096; k and M are powers of 1024."""
    units = {"k": 1 << 10, "m": 1 << 20}
    try:
        sizes = [int(part.rstrip("kKmM")) * units.get(part[-1:].lower(), 1) for part in text.lower().split("x")]
        length, columns = sizes
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write time x columns, as in 128x4096 or 1Mx16"
        ) from None
    if min(length, columns) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: both sizes must be at least 1")
    return length, columns


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m rltriton_jax.benchmark", description=sys.modules[__package__].__doc__)
    p.add_argument("--suite", choices=SUITES, default="quick", help="which cases (default: quick)")
    p.add_argument("--shape", type=shape, action="append", metavar="TxB", help="cases of this shape instead of a suite")
    p.add_argument("--estimator", choices=ESTIMATORS, action="append", help="only these, or of --shape (default: gae)")
    p.add_argument(
        "--layout", choices=LAYOUTS, action="append", help="only these, or of --shape (default: time, batch)"
    )
    p.add_argument("--inner", type=int, default=4, help="the inner size of --layout inner with --shape (default: 4)")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), action="append", help="only these types")
    p.add_argument("--gradient", action="store_true", help="only value and vjp")
    p.add_argument("--masked", action="store_true", help="only with a mask")
    p.add_argument("--implementation", choices=NAMES, action="append", help="only these")
    p.add_argument(
        "--no-chains", action="store_true", help="leave out the in-graph cost, whose programs compile slowly"
    )
    p.add_argument("--budget", type=float, metavar="SECONDS", help="stop after this time and keep what there is")
    p.add_argument("--seed", type=int, default=0, help="of the random inputs")
    p.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    p.add_argument("--plots", type=Path, metavar="DIR", help="write plots as PNG")
    p.add_argument("--compare", type=Path, metavar="FILE", help="print the change since the run in this JSON file")
    p.add_argument("--list", action="store_true", help="print the cases and stop")
    return p


def cases(args: argparse.Namespace) -> list[Case]:
    """What the arguments choose, in the order to measure it."""
    if not args.shape:
        chosen = SUITES[args.suite]()
        for name in ("estimator", "layout", "dtype"):
            allowed = getattr(args, name)
            chosen = [c for c in chosen if not allowed or getattr(c, name) in allowed]
        return [c for c in chosen if (c.gradient or not args.gradient) and (c.masked or not args.masked)]
    return [
        Case(estimator, layout, t, b, args.inner if layout == "inner" else 1, dtype, args.gradient, args.masked)
        for t, b in args.shape
        for estimator in args.estimator or ["gae"]
        for layout in args.layout or ["time", "batch"]
        for dtype in args.dtype or ["float32"]
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every implementation was right, 1 if one was wrong or failed, 2 for arguments that cannot be used."""
    p = parser()
    args = p.parse_args(argv)
    chosen = cases(args)
    if any(c.columns % c.inner for c in chosen):
        p.error(f"--inner {args.inner} does not divide the columns of --shape")
    unmasked = next((c.estimator for c in chosen if c.masked and not ESTIMATORS[c.estimator].masks), None)
    if unmasked:
        p.error(f"{unmasked} takes no mask; drop --masked or pass another --estimator")
    if args.list:
        print("\n".join(case.label for case in chosen))
        return 0
    if not chosen:
        p.error("no case is left; drop one of --estimator, --layout, --dtype, --gradient, --masked, or pass --shape")
    try:
        old: dict[str, Any] | None = _report.read(args.compare) if args.compare else None
    except ValueError as error:
        p.error(str(error))
    about, rows = measure(chosen, args)
    print(
        f"{about['device']}, "
        + ", ".join(f"{k} {v}" for k, v in about["versions"].items() if v)
        + f"; {about['device_time']}"
    )
    for title, heads, lines in (*_report.tables(rows), _report.summary(rows)):
        _show.table(title, heads, lines)
    if old is not None:
        _show.table(*_report.compared(old["rows"], rows))
    if args.plots:
        from . import _plots

        for path in _plots.write(args.plots, rows):
            print(path)
    bad = [
        f"{r['case']}: {r['implementation']} {r['status']}: {r['why']}"
        for r in rows
        if r["status"] in ("WRONG", "failed")
    ]
    bad += about["cases_failed"]
    for line in bad:
        print(line, file=sys.stderr)
    if about["cases_left"]:
        print(f"{about['cases_left']} of {len(chosen)} cases were left when the budget was used", file=sys.stderr)
    return 1 if bad else 0


def measure(chosen: Sequence[Case], args: argparse.Namespace) -> tuple[dict[str, Any], list[_report.Row]]:
    """(what the run was, its rows); an interrupt keeps what there is."""
    from . import _measure, _timing

    clock = _measure.Clock(args.budget)
    rows: list[_report.Row] = []
    reason = _timing.why_no_cupti()
    how = f"device time by wall clock ({reason})" if reason else "device time by CUPTI"
    about = {**_report.environment(), "device_time": how, "cases_left": len(chosen), "cases_failed": []}

    def wanted(name: str) -> bool:
        return not args.implementation or name in args.implementation

    with _show.progress(len(chosen)) as move:
        try:
            for done, case in enumerate(chosen):
                if clock.over():
                    break
                move(done, case.label)
                try:
                    rows += _measure.run(case, clock, wanted, args.seed, not args.no_chains)
                except Exception as error:  # a case too large for the device must not lose the others
                    about["cases_failed"].append(f"{case.label}: {type(error).__name__}: {str(error)[:300]}")
                about["cases_left"] = len(chosen) - done - 1
                if args.json:
                    _report.write(args.json, about, rows)
        except KeyboardInterrupt:
            print("interrupted; keeping what there is", file=sys.stderr)
    if args.json:
        _report.write(args.json, about, rows)
    return about, rows
