# SPDX-License-Identifier: Apache-2.0
"""ivycomm.jax with the current and the oldest supported JAX: values, derivatives and order compared with one process, and
the errors of calls that fail."""

import re

import pytest

from environments import python_of, script

QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # Compilation takes most of the time.
PARTS = ["values", "gradients", "order", "in_control_flow", "training", "through_loops", "types"]


@pytest.fixture(params=["jax", "jax-old"])
def python(request):
    return python_of(request.param)


def run(local, python, name, ranks, *arguments):
    return local.run("-n", str(ranks), "--python", python, script(local, name), *arguments, limit=150, env=QUICK)


@pytest.mark.parametrize(("environment", "ranks"), [("jax", 2), ("jax-old", 3)])
def test_calls_agree_with_one_process(local, environment, ranks):
    done = run(local, python_of(environment), "jax_collectives.py", ranks)
    assert done.code == 0, done
    assert re.findall(r"(\w+): right", done.out.decode()) == PARTS, done


def test_failures_raise_the_right_errors(local, python):
    done = run(local, python, "jax_failures.py", 2)
    assert done.code == 128 + 9, done
    text = done.out.decode()
    for what in "compiled", "eager":
        assert len(re.findall(what + r": ivycomm.errors.Mismatch .*differs between ranks", text)) == 2, done
    assert len(re.findall(r"plain: \S*(?:Xla|Jax)RuntimeError \S+ .*ivycomm: .*differs between ranks", text)) == 2, done
    assert text.count("types: builtins.ValueError reduce_scatter: 3 rows cannot be divided equally among 2 ranks") == 2
    assert text.count("tracing: builtins.NotImplementedError ivycomm.jax.reduce_scatter has no derivative") == 2, done
    assert "interrupted: builtins.KeyboardInterrupt" in text, done
    assert "left behind: ivycomm.errors.Aborted" in text, done
    assert "bereft: ivycomm.errors.RankDied rank 1" in text, done


def test_the_originals_calls_agree_with_jax(local):
    """Runs on 2 x 2 workers."""
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--python", python_of("jax"),
                     script(local, "jax_originals.py"), limit=150, env=QUICK)
    assert done.code == 0, done
    for part in ("pmap_beside_vmap", "reductions", "moments_beside_one_process", "calls_with_buffers", "pencils"):
        assert done.out.decode().count(f"{part}: right") == 4, done


def test_programs_are_compiled_again_for_a_new_world(local, python):
    done = local.run("-n", "3", "--on-failure", "shrink", "--python", python, script(local, "jax_new_world.py"), limit=150,
                     env=QUICK)
    text = done.out.decode()
    assert [text.count(f"{part}: right") for part in ("again", "groups", "shrunk")] == [3, 3, 2], done
