# SPDX-License-Identifier: Apache-2.0
"""Keras 3 as in its guide to distributed training: initialize(), a distribution, fit()."""
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy

keras.distribution.initialize()
keras.utils.set_random_seed(1)
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
rows = numpy.random.default_rng(1).random((32, 4)).astype("float32")
model.fit(rows, rows.sum(1, keepdims=True), batch_size=8, epochs=1, shuffle=False, verbose=0)

import jax

weights = numpy.asarray(jax.device_get(model.layers[0].kernel.value.addressable_shards[0].data)).sum()
print(f"rank {jax.process_index()} of {jax.process_count()} devices {len(keras.distribution.list_devices())} "
      f"model {weights:.5f}", flush=True)
