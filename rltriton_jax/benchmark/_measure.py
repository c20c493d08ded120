"""One case, measured: a row (a dict of plain numbers and strings) for each implementation."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from . import _data, _peers, _timing
from ._cases import Case
from ._estimators import ESTIMATORS
from ._gate import Gate

Row = dict[str, Any]
CHAINED = 2e7  # chains are for calls whose launch matters: at most this many bytes
LENGTHS = {"triton": (10, 50), "None": (10, 50)}
FEW = (2, 10)  # XLA's compile time follows the length of the chain


class Clock:
    """The time left of a budget in seconds; None is without end."""

    def __init__(self, budget: float | None):
        self.end = None if budget is None else time.monotonic() + budget

    def over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end


def run(
    case: Case, clock: Clock, wanted: Callable[[str], bool] = lambda name: True, seed: int = 0, chains: bool = True
) -> Iterator[Row]:
    """Rows as they are measured; ends early when the clock is over."""
    gpu = jax.default_backend() == "gpu"
    inputs = jax.block_until_ready(_data.inputs(case, seed))
    moved = _data.moved(case, inputs[0])
    gate = Gate(case, *inputs)
    sets = _timing.rotated([inputs], _timing.rotation(moved))
    shared: Row = {
        **dataclasses.asdict(case),
        "case": case.label,
        "shape": list(case.shape),
        "bytes": moved,
        "sets": len(sets),
        "floor": case.floor(moved) if gpu else None,
        "copy": _timing.copy_time(moved)._asdict(),
    }
    for name, call in _peers.calls(case, gpu).items():
        if clock.over():
            return
        if not wanted(name):
            continue
        row: Row = {**shared, "implementation": name, "status": "ok", "why": ""}
        reason = _peers.too_slow(name, case, gpu)
        if reason:
            row.update(status="skipped", why=reason)
        else:
            try:
                _fill(row, case, call, sets, gate, chains)
            except Exception as error:  # one implementation that fails must not end the run
                row.update(status="failed", why=f"{type(error).__name__}: {str(error)[:300]}")
        yield row


def _fill(row: Row, case: Case, call: Any, sets: list[Any], gate: Gate, chains: bool) -> None:
    function = _peers.with_gradient(case, call) if case.gradient else call
    started = time.perf_counter()
    compiled = jax.jit(function).lower(*sets[0]).compile()
    row["compile_s"] = time.perf_counter() - started
    memory = compiled.memory_analysis()
    row["temp_bytes"] = None if memory is None else int(memory.temp_size_in_bytes)
    found = launches(compiled.as_text() or "")
    row["ops"], row["loops"] = found.ops, found.loops
    row["error"] = gate.error(compiled(*sets[0]))
    if not gate.passes(row["error"]):
        row.update(status="WRONG", why=f"off by {row['error']:.2g} of the greatest value")
        return
    spent = _timing.call_time(compiled, sets)
    row["call"] = spent._asdict()
    device, row["kernels"] = None, None
    if not row["loops"] or case.length <= 4096:  # CUPTI keeps a record of every launch
        out_bytes = int(memory.output_size_in_bytes) if memory else row["bytes"]
        device, row["kernels"] = _timing.device_time(compiled, sets, spent.median / 1e6, out_bytes)
        if row["kernels"] is not None and row["kernels"] < found.kernels / 2:
            device = None  # more than the few that XLA turns into copies went past CUPTI, as a captured graph's may
    best = device or spent
    row["time"] = best._asdict()
    row["gb_per_s"] = row["bytes"] / best.median / 1e3
    row["of_copy"] = row["copy"]["median"] / best.median
    name = row["implementation"]
    if chains and not case.gradient and row["bytes"] <= CHAINED and (name in LENGTHS or name == "associative_scan"):
        row["chain"] = _chained(case, call, sets[0][0], LENGTHS.get(name, FEW))._asdict()


def _chained(case: Case, call: Any, args: dict[str, Any], lengths: tuple[int, int]) -> _timing.Timing:
    feed = ESTIMATORS[case.estimator].feed

    def step(full: dict[str, Any]) -> dict[str, Any]:
        # the barrier keeps XLA from sharing between calls what does not depend on the operand that is fed
        return jax.lax.optimization_barrier({**full, feed: call(full)[0]})

    return _timing.chain_time(step, args, lengths)


_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "opt-barrier"}
_NO_KERNEL = {"copy", "copy-start", "copy-done", "while", "conditional"}


class Launches(NamedTuple):
    """What a program launches: operations that cost something, loops among them, and how many are surely kernels."""

    ops: int
    loops: int
    kernels: int


def launches(hlo: str) -> Launches:
    """Counts the entry computation of a compiled module, and what it calls once."""
    bodies = {
        found[1]: found[2]
        for found in re.finditer(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL)
    }
    entry = re.search(r"^ENTRY %?([\w.-]+)", hlo, re.MULTILINE)
    names: list[str] = []

    def visit(body: str) -> None:
        for line in body.splitlines():
            operation = re.match(r"\s+(?:ROOT )?%?\S+ = .*?[)\]}] ([a-z][a-z0-9-]*)\(", line)
            called = re.search(r"to_apply=%?([\w.-]+)", line)
            if operation and operation[1] == "call" and called and called[1] in bodies:
                visit(bodies[called[1]])
            elif operation and operation[1] not in _FREE:
                names.append(operation[1])

    if entry:
        visit(bodies[entry[1]])
    loops = names.count("while")
    return Launches(len(names), loops, sum(name not in _NO_KERNEL for name in names))
