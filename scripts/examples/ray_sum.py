"""Ray's first example: ray.init() without arguments."""
import ray

ray.init(log_to_driver=False)


@ray.remote
def square(x):
    return x * x


print("nodes", sum(node["Alive"] for node in ray.nodes()), "total",
      sum(ray.get([square.remote(x) for x in range(20)])), flush=True)
