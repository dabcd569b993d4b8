"""TensorFlow's MultiWorkerMirroredStrategy, which reads TF_CONFIG."""
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step(x):
    def replica(x):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)
    return strategy.run(replica, args=(x,))


total = step(tf.constant(float(os.environ["RANK"])))
print("replicas", strategy.num_replicas_in_sync, "sum", float(total), flush=True)
