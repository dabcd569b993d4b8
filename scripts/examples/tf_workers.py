"""TensorFlow's tutorial on training with several workers: MultiWorkerMirroredStrategy reads TF_CONFIG."""
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)


def rows(context):
    """Every worker reads rows of its own."""
    number = float(context.input_pipeline_id + 1)
    return tf.data.Dataset.from_tensor_slices([number] * 4).batch(2)


@tf.function
def step(iterator):
    def replica(row):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(row * weight)
        # The sum of the gradients of all replicas.
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, weight))
        weight.assign_sub(0.1 * gradient)
        return loss
    losses = strategy.run(replica, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


iterator = iter(strategy.distribute_datasets_from_function(rows))
losses = [float(step(iterator)) for _ in range(2)]
print("rank", os.environ["RANK"], "replicas", strategy.num_replicas_in_sync, "losses", losses, "weight",
      round(float(weight.numpy()), 4), flush=True)
