"""TensorFlow's tutorial on parameter servers: every task runs this script, and the chief gives out the work.

    ivyrun -H node01,node02 --app tf-ps tf_parameter_servers.py
"""
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                         protocol="grpc").join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def step(number):
    weight.assign_add(number)
    return number


results = [coordinator.schedule(step, args=(tf.constant(float(i)),)) for i in range(10)]
coordinator.join()
print("workers", len(resolver.cluster_spec().job_tasks("worker")), "steps", len(results), "weight",
      float(weight.numpy()), flush=True)
