# SPDX-License-Identifier: Apache-2.0
"""Trainers on top of torch: accelerate, Transformers' Trainer, Lightning and DeepSpeed find their world by torchrun's
variables and have the right rank and size. Keras uses JAX and its own variables. `scripts/setup apps` installs all of
them."""

import re

import pytest

from environments import python_of, script

TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")


def ranks_of(done):
    return sorted(re.findall(r"rank (\d) of (\d) local (\d)", done.out.decode()))


@pytest.mark.long
@pytest.mark.parametrize("name, flags", [
    ("accelerate", ()), ("trainer", ()), ("lightning", ()), ("deepspeed", ("-x", "DS_ACCELERATOR=cpu"))])
def test_a_trainer_has_one_world(local, name, flags):
    done = local.run(*TWO_BY_TWO, *flags, "--python", python_of("trainers"), script(local, f"{name}_train.py"),
                     *([local.directory] if name == "trainer" else []), limit=240)
    assert done.code == 0, done
    assert ranks_of(done) == [("0", "4", "0"), ("1", "4", "1"), ("2", "4", "0"), ("3", "4", "1")], done
    # All ranks have trained the same model.
    assert len(set(re.findall(r"model (\S+)", done.out.decode()))) == 1, done


@pytest.mark.long
def test_megatron(local):
    """Ranks of one host are consecutive, so they share a model."""
    done = local.run(*TWO_BY_TWO, "--python", python_of("trainers"), script(local, "megatron_groups.py"), limit=240)
    assert done.code == 0, done
    ends = sorted(re.findall(r"rank (\d) of 4 tensor (\d) data (\d) sum (\d)", done.out.decode()))
    assert ends == [("0", "0", "0", "1"), ("1", "1", "0", "1"), ("2", "0", "1", "5"), ("3", "1", "1", "5")], done


@pytest.mark.long
def test_keras(local):
    done = local.run(*TWO_BY_TWO, "--python", python_of("keras"), script(local, "keras_train.py"), limit=240)
    assert done.code == 0, done
    ranks = sorted(re.findall(r"rank (\d) of 4 devices 4", done.out.decode()))
    assert ranks == ["0", "1", "2", "3"] and len(set(re.findall(r"model (\S+)", done.out.decode()))) == 1, done
