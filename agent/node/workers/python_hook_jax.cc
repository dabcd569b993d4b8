// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/python_hook_jax.h"

#include <string>

namespace ivy {
namespace {

constexpr std::string_view kJaxHook =
    R"py(# Changes modules of JAX once they have been executed; imports nothing of it by itself.
class _Jax:
    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        change = self.changes.get(name)
        if change is None:
            return None
        spec = _spec_behind(self, name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                try:
                    change(module)
                except Exception:  # A JAX that looks different is left as it is.
                    pass
            spec.loader.exec_module = exec_module
        return spec


# A launcher that a worker has started (mpirun in a script) has a world of its own.
def _is_of_this_job():
    import os
    get = os.environ.get
    inner = [(get("OMPI_COMM_WORLD_RANK"), get("IVY_RANK")),
             (get("OMPI_COMM_WORLD_SIZE"), get("IVY_WORLD_SIZE"))]
    return (all(get(name) is not None for name in
                ("IVY_RANK", "IVY_WORLD_SIZE", "JAX_COORDINATOR_ADDRESS"))
            and all(theirs is None or theirs == ours for theirs, ours in inner))


def _add_jax_cluster(module):
    import os
    base = module.ClusterEnv

    class IvyCluster(base):
        name = "ivyrun"

        @classmethod
        def is_env_present(cls):
            return _is_of_this_job()

        # Their arguments differ from version to version.
        @classmethod
        def get_coordinator_address(cls, *_, **__):
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["IVY_WORLD_SIZE"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["IVY_RANK"])

        # JAX_LOCAL_DEVICE_IDS says which devices; without it all that the process sees.
        @classmethod
        def get_local_process_id(cls):
            return None

    base._cluster_types.remove(IvyCluster)
    base._cluster_types.insert(0, IvyCluster)
)py";

// Ranks speak with the job's store in torch's dialect before they call into JAX: once its client
// connects, JAX ends the process when a peer does not come, and does not say which one.
constexpr std::string_view kStore =
    R"py(

# The store's part of torch's protocol that is needed here, in torch's numbers.
class _Store:
    def __init__(self, address, limit):
        import socket
        self.socket = socket.create_connection(address, 10)
        self.socket.settimeout(limit)
        self.socket.sendall(b"\0\xce\xf7\x85\x3c")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, number, *fields):
        words = [field if isinstance(field, bytes) else field.encode() for field in fields]
        self.socket.sendall(bytes([number]) + b"".join(
            len(word).to_bytes(8, "little") + word for word in words))

    def receive(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the store has closed")
            data += piece
        return data

    # Has no answer of its own: it is asked for, since the store does not serve who hangs up at once.
    def set(self, key, value):
        self.send(1, key, value)
        self.wait([key])

    def get(self, key):
        self.wait([key])
        self.send(3, key)
        return self.receive(int.from_bytes(self.receive(8), "little")).decode()

    def is_first(self, key):
        self.socket.sendall(b"\4" + len(key).to_bytes(8, "little") + key.encode()
                            + (1).to_bytes(8, "little"))
        return int.from_bytes(self.receive(8), "little") == 1

    def keys(self, number, keys):
        self.socket.sendall(bytes([number]) + len(keys).to_bytes(8, "little") + b"".join(
            len(key).to_bytes(8, "little") + key.encode() for key in keys))
        return self.receive(1) == b"\0"

    def has(self, key):
        return self.keys(5, [key])

    def wait(self, keys):
        return self.keys(6, keys)
)py";

constexpr std::string_view kMeeting =
    R"py(

# What a worker knew before its script changed anything, and how ranks say that they are there.
class _JaxMeeting:
    name, package, call = "jax", "jaxlib", "jax.distributed.initialize()"

    def __init__(self):
        import os
        get = os.environ.get
        self.rank, self.size = int(get("IVY_RANK")), int(get("IVY_WORLD_SIZE", "1"))
        self.coordinator = get("JAX_COORDINATOR_ADDRESS")
        self.port = get("IVY_MASTER_PORT")
        is_given = get("MASTER_PORT") == self.port
        self.address = (get("MASTER_ADDR" if is_given else "IVY_MASTER_ADDR"), int(self.port or 0))
        self.has_store = get("TORCHELASTIC_USE_AGENT_STORE") == "True" and self.size > 1
        self.limit = float(get("IVY_INIT_TIMEOUT", "120"))
        self.directory = os.path.dirname(get("IVY_TOKEN_FILE", ""))

    def store(self, limit=10):
        return _Store(self.address, limit)

    def key(self, rank):
        return "ivyrun/%s/%d" % (self.name, rank)

    # "2 (node1), 3 (node1)"
    def named(self, *ranks):
        import os
        hosts = []
        try:
            with open(os.path.join(self.directory, "hosts")) as file:
                for line in file:
                    name, count = line.rsplit(None, 1)
                    hosts += [name] * int(count)
        except (OSError, ValueError):
            pass
        texts = ["%d (%s)" % (rank, hosts[rank]) if rank < len(hosts) else str(rank)
                 for rank in ranks]
        return ", ".join(texts[:8]) + (" and %d more" % (len(texts) - 8) if len(texts) > 8 else "")

    # One rank says what all would say.
    def say(self, what, text):
        import os
        try:
            with self.store() as store:
                if not store.is_first("ivyrun/jax/said-" + what):
                    return
        except OSError:
            if self.rank != 0:
                return
        os.write(2, ("ivyrun: %s\n" % text).encode())

    def start(self):
        import threading
        import jaxlib.version
        version = jaxlib.version.__version__
        with self.store() as store:
            store.set(self.key(self.rank), version)
        if self.rank != 0:
            self.compare_with_rank_0(version)
        watch = self.watch_coordinator if self.rank != 0 else self.watch_ranks
        threading.Thread(target=watch, daemon=True, name="ivyrun").start()

    # Here rank 0 is waited for as JAX's client would do, but with a word when it does not come.
    def compare_with_rank_0(self, version):
        try:
            with self.store(self.limit) as store:
                first = store.get(self.key(0))
        except TimeoutError:
            self.say_missing([0])
            return
        if first.split(".")[:2] != version.split(".")[:2]:
            self.refuse_version(version, first)

    def refuse_version(self, version, first):
        import os
        import sys
        os.write(2, ("ivyrun: error[IVY-P031]: jaxlib is %s on rank %s and %s on rank %s: they do "
                     "not understand each other\n"
                     "  fix:   install one version on all hosts, such as: "
                     "%s -m pip install jax==%s\n" % (
                         version, self.named(self.rank), first, self.named(0), sys.executable,
                         first)).encode())
        os._exit(122)

    def say_missing(self, ranks):
        is_one = len(ranks) == 1
        self.say("missing", (
            "warning[IVY-P033]: rank%s %s %s not called %s within %g s "
            "(--start-timeout), and the others wait\n"
            "  fix:   `ivyctl stack` shows where %s; every rank must call it" % (
                "" if is_one else "s", self.named(*ranks), "has" if is_one else "have", self.call,
                self.limit, "it is" if is_one else "they are")))

    def watch_ranks(self, last=None):
        keys = [self.key(rank) for rank in range(self.size)][:last]
        try:
            with self.store(self.limit) as store:
                store.wait(keys)
        except TimeoutError:
            with self.store() as store:
                missing = [rank for rank, key in enumerate(keys) if not store.has(key)]
            if missing:
                self.say_missing(missing)
        except OSError:
            pass

    # Rank 0 listens right after it has said that it is there.
    def watch_coordinator(self):
        import socket
        import time
        host, port = self.coordinator.rsplit(":", 1)
        end = time.monotonic() + min(20.0, self.limit)
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), 5).close()
                return
            except OSError as error:
                why = error
            if time.monotonic() > end:
                break
            time.sleep(1)
        self.say("unreachable", (
            "warning[IVY-P032]: rank %s cannot reach JAX's coordinator, rank %s, at %s: %s\n"
            "  fix:   let the hosts reach each other at this port (--port-range A-B chooses it), or "
            "choose another network with --iface" % (
                self.named(self.rank), self.named(0), self.coordinator, why)))

    # Changes the arguments where they name the store's port. False: another world is meant.
    def correct(self, arguments):
        address = arguments.get("coordinator_address")
        if self.has_store and address and address.rsplit(":", 1)[-1] == self.port:
            self.say("port", (
                "note: port %s is that of the job's store: JAX's coordinator takes %s instead" % (
                    self.port, self.coordinator)))
            arguments["coordinator_address"] = self.coordinator
        said = [arguments.get("process_id"), arguments.get("num_processes")]
        if any(word is not None and word != ours
               for word, ours in zip(said, [self.rank, self.size])):
            self.say("differs", (
                "note: jax.distributed.initialize() was called with process_id=%s, num_processes=%s, "
                "but this is rank %s of %d\n"
                "  fix:   remove both arguments; ignore this if you want a subgroup" % (
                    said[0], said[1], self.named(self.rank), self.size)))
            return False
        return arguments.get("coordinator_address") in (None, self.coordinator)
)py";

constexpr std::string_view kArm =
    R"py(

# Older JAX has no switch for its preemption service, and "none" for collectives on the CPU.
def _make_old_jax_alike(module):
    import os
    if not hasattr(module, "_ENABLE_PREEMPTION_SERVICE"):
        if os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE") == "false":
            module.State.initialize_preemption_sync_manager = lambda self: None


def _use_gloo():
    import os
    from jax._src import config, xla_bridge
    named = getattr(xla_bridge, "CPU_COLLECTIVES_IMPLEMENTATION", None)
    if named is not None:
        if named.value in (None, "none"):
            wanted = os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
            config.config.update("jax_cpu_collectives_implementation", wanted)


# A rank that comes back (--on-failure replace) finds what it had written in JAX's service. Rank 0 writes the devices of
# all ranks there once, and would fail at the second time.
def _forget_topology():
    import os
    from jax._src import distributed
    client = distributed.global_state.client
    if "IVY_REJOIN" not in os.environ or os.environ.get("IVY_RANK") != "0" or client is None:
        return
    for platform in "cpu", "cuda", "rocm":
        try:
            client.key_value_delete("%s:global_topology/%s" % (platform, platform))
        except Exception:
            pass


# At its exit a process waits for all others, up to five minutes: of one that fails nobody would hear
# until then. JAX tells them itself once its connections are closed.
def _hurry_when_failing(module):
    import functools
    import sys
    leave = sys.exit
    codes = []

    def exit(code=None):
        codes.append(code)
        leave(code)
    sys.exit = exit
    run = module.State.shutdown

    @functools.wraps(run)
    def shutdown(self):
        is_exception = getattr(sys, "last_value", None) is not None
        is_failure = bool(codes) and codes[-1] not in (None, 0)
        if not (is_exception or is_failure) or self.client is None:
            return run(self)
        import ctypes
        for part in (self.client, self.service):
            # Kept beyond the end: to be destroyed means to wait as well.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    module.State.shutdown = shutdown


def _change_jax_start(module):
    import functools
    import inspect
    _make_old_jax_alike(module)
    _hurry_when_failing(module)
    meeting = _JaxMeeting()
    run = module.State.initialize
    signature = inspect.signature(run)

    @functools.wraps(run)
    def initialize(*values, **named):
        bound = None
        try:
            if _is_of_this_job():
                bound = signature.bind(*values, **named)
                if meeting.correct(bound.arguments) and meeting.has_store:
                    meeting.start()
        except Exception:  # Without the store, or with wrong arguments, JAX speaks for itself.
            pass
        result = run(*bound.args, **bound.kwargs) if bound else run(*values, **named)
        agree = lambda: _agree(meeting, "JAX", module.global_state.process_id, module.global_state.num_processes)
        for make in _use_gloo, _forget_topology, agree:
            try:
                make()
            except Exception:
                pass
        return result
    module.State.initialize = initialize


# With jax_cpu_collectives_implementation=mpi, JAX ends MPI and only then frees its communicators, which MPI takes for an
# error. Here MPI ends with the process.
def _end_mpi_late(module):
    import atexit
    import os

    class Late:
        def __getattr__(self, name):
            return getattr(atexit, name)

        def register(self, function, *values, **named):
            if getattr(function, "__name__", "") != "Finalize" or "MPITRAMPOLINE_LIB" not in os.environ:
                return atexit.register(function, *values, **named)
            import ctypes
            library = ctypes.CDLL(os.environ["MPITRAMPOLINE_LIB"])
            getattr(ctypes.CDLL(None), "__cxa_atexit")(library.MPI_Finalize, None, None)
            return function
    module.atexit = Late()


# Scripts ask at every step. ivyrun has switched the service off where no notice can come: then the
# answer is no, and not an error.
def _answer_without_service(module):
    import functools
    import os
    ask = module.reached_preemption_sync_point

    @functools.wraps(ask)
    def reached_preemption_sync_point(step_id):
        is_off = (os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE") == "false"
                  and module.distributed.global_state.preemption_sync_manager is None)
        return False if is_off else ask(step_id)
    module.reached_preemption_sync_point = reached_preemption_sync_point


def _arm_jax():
    import os
    import sys
    if "IVY_RANK" in os.environ and "JAX_COORDINATOR_ADDRESS" in os.environ:
        # jaxlib loads an MPI with the wrapper, and UCX of Debian's MPICH fails there when it reads its variables.
        if "MPITRAMPOLINE_LIB" in os.environ:
            os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        sys.meta_path.insert(0, _Jax({
            "jax._src.clusters": _add_jax_cluster,
            "jax._src.distributed": _change_jax_start,
            "jax._src.xla_bridge": _end_mpi_late,
            "jax.experimental.multihost_utils": _answer_without_service,
        }))


)py";

}  // namespace

std::string_view python_hook_jax() {
  static const std::string text =
      std::string(kJaxHook) + std::string(kStore) + std::string(kMeeting) + std::string(kArm);
  return text;
}

}  // namespace ivy
