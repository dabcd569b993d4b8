"""LightGBM's parallel learning: the machines are a parameter."""
import os

import lightgbm
import numpy

numbers = numpy.random.default_rng(int(os.environ["RANK"]))
rows = numbers.random((400, 4))
data = lightgbm.Dataset(rows, label=(rows[:, 0] > 0.5).astype(float), params={"verbose": -1})
booster = lightgbm.train({"objective": "binary", "num_leaves": 4, "verbose": -1, "num_threads": 1,
                          "tree_learner": "data", "pre_partition": True, "num_machines": int(os.environ["WORLD_SIZE"]),
                          "machines": os.environ["IVY_MACHINES"],
                          "local_listen_port": int(os.environ["IVY_LISTEN_PORT"])}, data, num_boost_round=3)
print("trees", booster.num_trees(), "model", booster.model_to_string(num_iteration=1).count("leaf"), flush=True)
