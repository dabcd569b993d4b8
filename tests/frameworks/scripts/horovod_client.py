# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Horovod's Gloo controller, whose build takes minutes: it uses the same variables and HTTP requests as
Horovod's C++ store, in two worlds one after the other. horovod_train.py uses the real Horovod."""
import http.client
import os
import time

variable = os.environ.__getitem__
rank, size = int(variable("HOROVOD_RANK")), int(variable("HOROVOD_SIZE"))
assert variable("HOROVOD_CONTROLLER") == variable("HOROVOD_CPU_OPERATIONS") == "gloo"


def ask(method, scope, key, body=None):
    server = http.client.HTTPConnection(variable("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
                                        int(variable("HOROVOD_GLOO_RENDEZVOUS_PORT")), timeout=30)
    server.request(method, f"/{scope}/{key}", body)
    answer = server.getresponse()
    return answer.status, answer.read()


def mesh(scope, place, members, value):
    """Every member sets its key, reads the keys of all others, and reports that it has finished."""
    assert ask("PUT", scope, place, value)[0] == 200
    values = []
    for other in range(members):
        while (found := ask("GET", scope, other))[0] == 404:
            time.sleep(0.01)
        values.append(found[1])
    return values


for world in b"first", b"second":
    values = mesh("global", rank, size, world + b" %d" % rank)
    assert values == [world + b" %d" % other for other in range(size)], values
    local = mesh("local_" + variable("HOROVOD_HOSTNAME"), int(variable("HOROVOD_LOCAL_RANK")),
                 int(variable("HOROVOD_LOCAL_SIZE")), b"%d" % rank)
    cross = mesh("cross_" + variable("HOROVOD_LOCAL_RANK"), int(variable("HOROVOD_CROSS_RANK")),
                 int(variable("HOROVOD_CROSS_SIZE")), b"%d" % rank)
    # A barrier replaces the reductions in between: a rank that has finished has read everything.
    mesh(f"barrier_{world.decode()}", rank, size, b"")
    for scope, place in (("global", rank), ("local_" + variable("HOROVOD_HOSTNAME"), variable("HOROVOD_LOCAL_RANK")),
                         ("cross_" + variable("HOROVOD_LOCAL_RANK"), variable("HOROVOD_CROSS_RANK"))):
        assert ask("DELETE", scope, place)[0] == 200
    mesh(f"finished_{world.decode()}", rank, size, b"")
print("rank", rank, "of", size, "local", [int(one) for one in local], "cross", [int(one) for one in cross], flush=True)
