"""Tiles that `rltriton_jax.tune` found faster on this very GPU: the user's file, refused unless all of it fits."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__

if TYPE_CHECKING:
    from ._tiles import Tile
    from ._view import View

FORMAT = 1
VARIABLE = "RLTRITON_JAX_TILES"
REPETITIONS = 3  # a tile's speed-up was reproduced at least so often
SIZES = ("runs", "steps", "columns", "warps")  # powers of 2, as Triton wants them
MOST = 1 << 16  # elements of a tile, and any of its sizes
_KEY = re.compile(r"(rows|columns|inner \d+) T\d+ C\d+ R\d+( adjoint)?")


def key_of(view: View) -> str:
    """The name of a bucket of calls: layout, log2 of time and of the columns, how many numbers a step reads, direction."""
    inner = view.dims[-1].bit_length() - 1
    layout = "rows" if view.time_is_last else f"inner {inner}" if len(view.dims) > 1 else "columns"
    adjoint = " adjoint" if view.mirrored else ""
    return f"{layout} T{view.length.bit_length() - 1} C{view.columns.bit_length() - 1} R{view.numbers}{adjoint}"


def identity(device: str) -> dict[str, Any]:
    """What a file must have been made with to be used; the kernels themselves are among it."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent.parent / "kernels").glob("*.py")):
        digest.update(path.read_bytes())
    return {
        "format": FORMAT,
        "device": device,
        "rltriton_jax": __version__,
        "triton": triton,
        "kernels": digest.hexdigest()[:16],
    }


def path_for(device: str) -> Path | None:
    """The file of a device; None where RLTRITON_JAX_TILES is "off"."""
    named = os.environ.get(VARIABLE)
    if named:
        return None if named.lower() == "off" else Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "rltriton_jax" / f"tiles-{re.sub(r'[^A-Za-z0-9]+', '-', device)}.json"


def _tile(key: str, fields: Any) -> Tile:
    from ._tiles import Tile

    wanted = set(Tile._fields)
    if not isinstance(fields, dict) or set(fields) != wanted:
        raise ValueError(f"{key}: a tile has the fields {sorted(wanted)}")
    for name, value in fields.items():
        kind = str(Tile.__annotations__[name])
        if "bool" in kind:
            good = isinstance(value, bool)
        else:
            good = type(value) is int and 1 <= value <= MOST and (name not in SIZES or value & (value - 1) == 0)
        if not good:
            raise ValueError(f"{key}: {name} is {value!r}")
    tile = Tile(**fields)
    if tile.warps > 32 or tile.runs * tile.steps * tile.columns > MOST or tile.rows != key.startswith("rows"):
        raise ValueError(f"{key}: {tile} is no tile for this layout")
    return tile


def _is_gain(value: Any) -> bool:
    return type(value) is float and 1.0 < value < 1e3


def parse(found: Any, expected: Mapping[str, Any]) -> dict[str, Tile]:
    """The tiles of a file's content by key; ValueError with the reason where any of it does not fit."""
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    for name, value in expected.items():
        if found.get(name) != value:
            raise ValueError(f"it was made with {name} {found.get(name)!r}, and this is {value!r}")
    entries = found.get("tiles")
    if not isinstance(entries, dict):
        raise ValueError("it has no tiles")
    tiles = {}
    for key, entry in entries.items():
        if not _KEY.fullmatch(key) or not isinstance(entry, dict):
            raise ValueError(f"{key!r} is no entry")
        gains = entry.get("speedups")
        if not isinstance(gains, list) or len(gains) < REPETITIONS or not all(map(_is_gain, gains)):
            raise ValueError(f"{key}: its speed-up was not reproduced {REPETITIONS} times")
        tiles[key] = _tile(key, entry.get("tile"))
    return tiles


def read(path: Path, device: str) -> dict[str, Tile]:
    """The tiles of a file by key; ValueError with the reason where it cannot be used."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not readable as JSON: {error}") from error
    return parse(found, identity(device))


@functools.cache
def load_overrides() -> Mapping[str, Tile]:
    """The tiles tuned on this machine's GPU; none, after one warning, where the file is bad or stale."""
    import jax

    if jax.default_backend() != "gpu":
        return {}
    device = jax.devices()[0].device_kind
    path = path_for(device)
    if path is None or not (path.exists() or os.environ.get(VARIABLE)):
        return {}
    try:
        return read(path, device)
    except ValueError as error:
        warnings.warn(
            f"rltriton_jax does not use the tuned tiles in {path}: {error}. "
            f"Run python -m rltriton_jax.tune again, delete the file, or set {VARIABLE}=off",
            stacklevel=2,
        )
        return {}


@dataclasses.dataclass
class Forced:
    """What stands in for the file while tuning: one tile, or the table itself (None), and the views that asked."""

    tile: Tile | None
    seen: list[View] = dataclasses.field(default_factory=list)


_forced: contextvars.ContextVar[Forced | None] = contextvars.ContextVar("forced", default=None)


@contextlib.contextmanager
def forcing(tile: Tile | None) -> Iterator[Forced]:
    """Within it what is lowered uses `tile`, or the table's own for None."""
    forced = Forced(tile)
    token = _forced.set(forced)
    try:
        yield forced
    finally:
        _forced.reset(token)


def override_for(view: View) -> Tile | None:
    """The tile to use instead of the table's, if any."""
    forced = _forced.get()
    if forced is None:
        return load_overrides().get(key_of(view))
    forced.seen.append(view)
    fits = forced.tile is not None and forced.tile.rows == view.time_is_last
    return forced.tile if fits else None
