# SPDX-License-Identifier: Apache-2.0
"""Serves JAX's coordination service until it is killed: python3 -c TEXT ADDRESS RANKS. The last line of its standard
error is the reason of its exit."""
import os
import signal
import sys
import time


def start(library, address, ranks):
    # jaxlib 0.4.31 and 0.10.2 know different arguments.
    for words in ({"heartbeat_timeout": 100, "shutdown_timeout": 300, "recoverable": True},
                  {"heartbeat_timeout": 100, "shutdown_timeout": 300},
                  {"heartbeat_interval": 10, "max_missing_heartbeats": 10, "shutdown_timeout": 300}, {}):
        try:
            return library.get_distributed_runtime_service(address, ranks, **words)
        except TypeError as error:
            why = error
    raise why


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
address, ranks = sys.argv[1], int(sys.argv[2])
try:
    try:
        from jaxlib import _jax as library
    except ImportError:
        from jaxlib import xla_extension as library
except ImportError as error:
    sys.exit("%s has no jaxlib: %s" % (sys.executable, error))

end = time.monotonic() + 10
while True:
    try:
        service = start(library, address, ranks)
        break
    except RuntimeError as error:
        # The service of the previous generation may hold the port for a moment longer.
        if time.monotonic() > end:
            sys.exit("it cannot listen at %s: %s" % (address, str(error).splitlines()[0]))
    time.sleep(0.2)
while True:
    signal.pause()
