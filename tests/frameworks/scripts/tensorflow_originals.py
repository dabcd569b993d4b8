# SPDX-License-Identifier: Apache-2.0
"""pmap on TensorFlow's tensors compared with vectorized_map on the whole array. Prints "agree" at the end."""

import ivycomm as ic
import numpy as np
import tensorflow as tf
from ivycomm import i_dist

calls = []


def layer(row, column, weights):
    calls.append(1)
    hidden = tf.tanh(tf.linalg.matvec(weights, row, transpose_a=True))
    return {"hidden": hidden, "pair": (tf.reduce_sum(hidden), column[:2])}


def main():
    i_dist.init_dist()
    length = 3 * ic.world_size() + 1
    random = np.random.default_rng(3)
    rows, columns, weights = (tf.constant(random.normal(size=shape)) for shape in ((length, 4), (4, length), (4, 2)))
    made = i_dist.pmap(layer, in_axes=(0, 1, None), vectorize=True)(rows, columns, weights)
    assert len(calls) == 1, "TensorFlow's own vmap maps all positions of a rank at once"
    hidden = tf.tanh(rows @ weights)
    for got, wanted in ((made["hidden"], hidden), (made["pair"][0], tf.reduce_sum(hidden, 1)),
                        (made["pair"][1], tf.transpose(columns[:2]))):
        assert tf.is_tensor(got) and np.allclose(got, wanted)
    # A function that vectorized_map cannot trace is called for each position.
    uneven = i_dist.pmap(lambda row: row.numpy().sum())(rows)
    assert np.allclose(uneven, tf.reduce_sum(rows, 1))
    print(f"rank {ic.rank()}: agree")


main()
