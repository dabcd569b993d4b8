"""Runs an example of each of the originals' documents, one after the other in one process, because importing torch takes long."""

import os
import runpy

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../scripts/examples")

for name in "ivy_gelu.py", "parameter_server.py", "zero1.py", "neurenix_training.py":
    runpy.run_path(os.path.join(EXAMPLES, name), run_name="__main__")
