"""Record annotated steps of a small program of JAX (pip install jax): jax_steps.py FOLDER."""

import sys

import jax
import jax.numpy as jnp

STEPS = range(5, 9)


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take a step of gradient descent."""

    def loss(weights: jax.Array) -> jax.Array:
        return ((batch @ weights) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))
weights, _ = train_step(weights, batch)
with jax.profiler.trace(sys.argv[1]):
    for number in STEPS:
        with jax.profiler.StepTraceAnnotation("loss", step_num=number):
            weights, value = train_step(weights, batch)
            value.block_until_ready()
