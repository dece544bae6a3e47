"""Compiled training steps of JAX on 64 devices that the machine lacks, as text of XLA (HLO).

``python jax_step.py pjit`` writes ``pjit.hlo``: XLA partitions a program with sharded arrays (data x tensor).
``python jax_step.py shard_map`` writes ``shard_map.hlo``: the program itself calls collectives.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

DEVICES, DATA, TENSOR = 64, 8, 8
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

WIDTH, HIDDEN, TOKENS = 4096, 16384, 65536
"""Of the layer, and tokens of all devices."""


def layer(x: Any, up: Any, down: Any) -> Any:
    """Return the output of a feed-forward network."""
    return jax.nn.gelu(x @ up) @ down


def pjit_step(mesh: Any) -> Any:
    """Return a step in which XLA chooses the collectives."""

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(layer(x, *weights)))

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return tuple(w - 1e-3 * g for w, g in zip(weights, gradients, strict=True))

    rows, columns = PartitionSpec("tensor", None), PartitionSpec(None, "tensor")
    sharded = tuple(NamedSharding(mesh, spec) for spec in (columns, rows))
    tokens = NamedSharding(mesh, PartitionSpec("data", None))
    return jax.jit(step, in_shardings=(sharded, tokens), out_shardings=sharded)


def shard_map_step(mesh: Any) -> Any:
    """Return a step that calls its collectives: sums of outputs over `tensor`, of gradients over `data`."""
    specs = (PartitionSpec(None, "tensor"), PartitionSpec("tensor", None))

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(specs, PartitionSpec("data", None)),
        out_specs=specs,
        check_vma=False,
    )
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = jax.lax.psum(layer(x, *weights), "tensor")
            return jnp.mean(jnp.square(y))

        gradients = jax.lax.pmean(jax.grad(loss)(weights), "data")
        return tuple(w - 1e-3 * g for w, g in zip(weights, gradients, strict=True))

    return jax.jit(step)


def main() -> None:
    """Compile a step, and write it."""
    kind = sys.argv[1]
    axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((DATA, TENSOR), ("data", "tensor"), axis_types=axes)
    step = {"pjit": pjit_step, "shard_map": shard_map_step}[kind](mesh)
    shapes = (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    weights = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    tokens = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)
    Path(f"{kind}.hlo").write_text(step.lower(weights, tokens).compile().as_text())


if __name__ == "__main__":
    main()
