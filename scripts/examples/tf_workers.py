"""TensorFlow's MultiWorkerMirroredStrategy, which reads TF_CONFIG."""
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def step(x):
    def replica(x):
        weight.assign_add(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, x) * weight)
        return weight.read_value()
    return strategy.run(replica, args=(x,))


value = step(tf.constant(float(os.environ["RANK"])))
print("task", strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id, "replicas",
      strategy.num_replicas_in_sync, "weight", float(strategy.reduce("MEAN", value, axis=None)), flush=True)
