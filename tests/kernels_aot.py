"""Compiles the kernels of a call for GPUs that are not there, and runs them on NumPy arrays between canaries."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax import _backends
from rltriton_jax._backends._kernel import build
from rltriton_jax._backends._tiles import tile_for
from rltriton_jax._backends._view import view

NAMES = {"bool": "i1", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "uint8": "u8"}
NAMES |= {f"int{n}": f"i{n}" for n in (8, 32, 64)}


def walks_of(f, *args):
    """(walk, avals, axis, dtypes) of every walk that f(*args) runs, in order."""
    found = []

    def visit(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "rltriton_walk":
                p = eqn.params
                found.append((p["walk"].to_run(), [v.aval for v in eqn.invars], p["axis"], p["dtypes"]))
            for value in eqn.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        visit(inner)

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return found


def kernel_of(walk, avals, axis, dtypes, tile=None):
    """(kernel, shapes of outputs) of a walk, with the tile that its shape gets unless one is given."""
    walk, avals = entered(walk, avals, axis)
    types = tuple(jnp.dtype(a.dtype) for a in avals)
    seen = view(walk, [tuple(a.shape) for a in avals], axis, types)
    kernel = build(walk, types, seen, tile or tile_for(seen))
    return kernel, _backends.outputs(walk, avals, axis, dtypes)


def entered(walk, avals, axis):
    """The walk that the kernels know: of a shard of time, that with the state that enters it."""
    entry = _backends.entry_of(walk, avals, axis)
    return _backends.entered(walk, avals, entry, entry) if walk.over else (walk, avals)


def compiled(which, walk, avals, axis, dtypes, target, tile=None):
    """A launch ("scan", "reduce" or "total") of a walk, compiled by Triton for `target`."""
    import triton
    from triton.compiler import ASTSource

    kernel, outs = kernel_of(walk, avals, axis, dtypes, tile)
    launch = getattr(kernel, which)
    walk, avals = entered(walk, avals, axis)
    accumulated = "*" + NAMES[_backends.accumulator(walk, [a.dtype for a in avals]).name]
    signature = {f"p{i}": "*" + NAMES[jnp.dtype(avals[k].dtype).name] for i, k in enumerate(launch.operands)}
    if "s" in launch.function.arg_names:
        signature["s"] = "*i32"
    if "a" in launch.function.arg_names:
        signature |= {"a": accumulated, "y": accumulated}
    if which != "scan":
        signature |= {"o0": accumulated, "o1": accumulated}
    else:
        signature |= {f"o{i}": "*" + NAMES[jnp.dtype(out.dtype).name] for i, out in enumerate(outs)}
    if "w" in launch.function.arg_names:
        signature["w"] = "*i32"
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    source = ASTSource(fn=launch.function, signature=signature, constexprs={}, attrs=attrs)
    return triton.compile(source, target=target, options={"num_warps": launch.warps, "num_stages": 1})


def spilled_bytes(binary):
    """Local memory of a compiled kernel, by the tools that Triton ships, but for a frame of 8 bytes that spills nothing."""
    import triton

    if "amdgcn" in binary.asm:
        return 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", binary.asm["amdgcn"]).group(1))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    tool = tool if tool.exists() else shutil.which("cuobjdump")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        text = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True).stdout
    stack, local = map(int, re.search(r"STACK:(\d+).*LOCAL:(\d+)", text).groups())
    return max(0, stack - 8) + local


CANARY = 64


class Fenced:
    """An array between canaries, which tell a write beside it."""

    def __init__(self, shape, dtype, fill):
        size = int(np.prod(shape))
        self.whole = np.empty(size + 2 * CANARY, dtype)
        self.whole.view(np.uint8)[:] = 0x5A
        self.array = self.whole[CANARY : CANARY + size].reshape(shape)
        self.array[...] = fill

    def intact(self):
        ends = np.concatenate([self.whole[:CANARY], self.whole[-CANARY:]])
        return bool((ends.view(np.uint8) == 0x5A).all())


def run_fenced(walk, operands, axis, dtypes, tile):
    """The outputs of a kernel that reads time once, run by the interpreter, poisoned before it, and all arrays used."""
    from rltriton_jax._backends._interpreter import run

    kernel, outs = kernel_of(walk, operands, axis, dtypes, tile)
    ins = [Fenced(operands[k].shape, operands[k].dtype, np.asarray(operands[k])) for k in kernel.scan.operands]
    results = [Fenced(out.shape, out.dtype, np.nan) for out in outs]
    words = [Fenced((kernel.words, 2), np.int32, 0)] * bool(kernel.words)
    run(kernel.scan.function, kernel.grid, [x.array for x in (*ins, *results, *words)])
    return [x.array for x in results], [*ins, *results, *words]
