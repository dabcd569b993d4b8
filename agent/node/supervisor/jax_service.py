# SPDX-License-Identifier: Apache-2.0
"""Runs JAX's coordination service until it is killed: python3 -c TEXT ADDRESS RANKS.

If the process exits by itself, the last line of its standard error is the reason.
"""
import os
import signal
import sys
import time


def start(library, address, ranks):
    # The accepted arguments differ between versions of jaxlib (seen in 0.4.31 and 0.10.2).
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
        # After a restart, the previous service may still hold the port for a moment.
        if time.monotonic() > end:
            sys.exit("it cannot listen on %s: %s" % (address, str(error).splitlines()[0]))
    time.sleep(0.2)
while True:
    signal.pause()
