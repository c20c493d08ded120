"""What is measured: an estimator over a layout, a shape and a type, forward or with its gradient; the suites."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from ._estimators import ESTIMATORS

LAYOUTS = ("time", "batch", "inner")
MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Case:
    """`layout` is "time" ([T, B]), "batch" ([B, T]) or "inner" ([B // inner, T, inner])."""

    estimator: str
    layout: str
    length: int
    columns: int
    inner: int = 1
    dtype: str = "float32"
    gradient: bool = False
    masked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        if self.layout == "time":
            return self.length, self.columns
        if self.layout == "batch":
            return self.columns, self.length
        return self.columns // self.inner, self.length, self.inner

    @property
    def time_axis(self) -> int:
        return 0 if self.layout == "time" else 1

    @property
    def label(self) -> str:
        axes = list(map(_short, self.shape))
        axes[self.time_axis] = f"T={axes[self.time_axis]}"
        extra = "".join(f" {name}" for name, on in (("mask", self.masked), ("grad", self.gradient)) if on)
        return f"{self.estimator} [{', '.join(axes)}] {'bf16' if self.dtype == 'bfloat16' else 'f32'}{extra}"

    @property
    def few_rows(self) -> bool:
        """Too few columns to fill a GPU without cutting time."""
        return self.columns <= 512 and self.length >= 65536 or self.columns <= 64 and self.length >= 32768

    def floor(self, moved: int) -> float | None:
        """The least fraction of copy speed that the design asks for at this many bytes."""
        if self.few_rows:
            return 0.55
        if self.gradient:
            return 0.9 if moved >= 90 * MEGABYTE else None
        if moved >= 400 * MEGABYTE:
            return 0.95
        if moved >= 90 * MEGABYTE:
            return 0.9
        return 1 / 1.15 if 6 * MEGABYTE <= moved < 10 * MEGABYTE else None


def _short(n: int) -> str:
    for least, power, unit in ((1 << 20, 20, "M"), (10 << 10, 10, "k")):
        if n >= least and n % (1 << power) == 0:
            return f"{n >> power}{unit}"
    return str(n)


FEW_ROWS = ((65536, 16), (1 << 20, 16), (1 << 24, 1), (131072, 64))
INNER = ((1024, 16384), (128, 65536))


def shapes() -> list[tuple[int, int]]:
    """(T, B) of the full table, the few long rows apart."""
    rollouts = [(t, b) for t in (8, 16, 32, 64, 128) for b in (4096, 8192, 16384, 32768)]
    wide = [(t, b) for t in (128, 512, 1024, 2048, 4096) for b in (128, 512, 2048, 8192, 65536)]
    return list(dict.fromkeys(rollouts + wide))


def quick() -> list[Case]:
    """A dozen that span layouts, sizes, estimators, types and gradients."""
    return [
        Case("gae", "time", 128, 4096),
        Case("gae", "batch", 128, 4096),
        Case("gae", "time", 1024, 65536),
        Case("gae", "batch", 1024, 65536),
        Case("gae", "batch", 1 << 20, 16),
        Case("gae", "time", 128, 65536, gradient=True),
        Case("vtrace", "time", 128, 65536),
        Case("gae", "time", 16, 256),
        Case("gae", "time", 4096, 8192),
        Case("lambda_returns", "batch", 512, 65536, dtype="bfloat16"),
        Case("gae", "inner", 1024, 16384, inner=4),
        Case("retrace", "batch", 1024, 8192, gradient=True),
        Case("gae", "batch", 4096, 2048, masked=True),
        Case("episodic_prefix_sum", "time", 2048, 8192),
        Case("gae", "batch", 1 << 24, 1),
        Case("gae", "time", 131072, 64),
    ]


def llm() -> list[Case]:
    """Batches of token sequences: batch-major, masked, long."""
    batches = [(2048, 64), (4096, 256), (8192, 512), (16384, 1024), (32768, 64), (131072, 16)]
    cases = []
    for t, b in batches:
        cases += [Case("gae", "batch", t, b, masked=True), Case("gae", "batch", t, b, dtype="bfloat16", masked=True)]
        cases += [Case("discounted_returns", "batch", t, b, masked=True)]
    cases += [Case("gae", "batch", t, b, gradient=True, masked=True) for t, b in batches[1:4]]
    cases += [Case("vtrace", "batch", t, b, masked=True) for t, b in batches[1:4]]
    return cases


def full() -> list[Case]:
    """Every shape with GAE, a third with each other estimator, type and gradient; any beginning of it spans them."""
    return [*quick(), *_spread(set(_everything()) - set(quick()))]


def _everything() -> Iterator[Case]:
    sites = [Case("gae", layout, t, b) for t, b in shapes() for layout in ("time", "batch")]
    sites += [Case("gae", "batch", t, b) for t, b in FEW_ROWS]
    sites += [Case("gae", "time", t, b) for t, b in FEW_ROWS if b > 1]
    sites += [Case("gae", "inner", t, b, inner=i) for t, b in INNER for i in (2, 4, 16)]
    yield from sites
    variants: list[dict[str, Any]] = [dict(estimator=name) for name in ESTIMATORS if name != "gae"]
    variants += [dict(dtype="bfloat16"), dict(gradient=True), dict(masked=True)]
    for offset, change in enumerate(variants):
        for site in sites[offset % 3 :: 3]:
            yield dataclasses.replace(site, **change)


def _spread(cases: Iterable[Case]) -> list[Case]:
    """GAE in float32 first; within each kind an order that mixes the shapes and is the same in every run."""

    def key(case: Case) -> tuple[bool, int]:
        plain = case.estimator == "gae" and case.dtype == "float32" and not case.gradient and not case.masked
        return not plain, zlib.crc32(repr(case).encode())

    return sorted(cases, key=key)


SUITES = {"quick": quick, "llm": llm, "full": full}
