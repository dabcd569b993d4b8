// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/python_hook_worlds.h"

namespace ivy {
namespace {

// Each change wraps one function, which keeps its result and its exceptions.
constexpr std::string_view kWorlds =
    R"py(
def _after(owner, name, then):
    import functools
    run = getattr(owner, name)

    @functools.wraps(run)
    def wrapped(*values, **named):
        result = run(*values, **named)
        try:
            then(values[0] if values else None)
        except Exception:
            pass
        return result
    setattr(owner, name, wrapped)


def _say_alone(meeting, name, fix):
    meeting.say("alone-" + name, (
        "warning[IVY-P036]: %s is alone in each of the %d workers: as many worlds of one\n"
        "  fix:   %s" % (name, meeting.size, fix)))


# Ranks of a framework without a word of its own for a rank that does not come.
class _Meeting(_JaxMeeting):
    def __init__(self, name, package, call):
        super().__init__()
        self.name, self.package, self.call = name, package, call
        self.has_met = False

    # Calls run(). Rank 0 looks for the others meanwhile, and rank 1 for rank 0.
    def around(self, run, version):
        if self.has_met or not self.has_store or _has_other_launcher():
            return run()
        self.has_met = True
        try:
            self.arrive(version)
        except OSError:
            return run()
        result = run()
        try:
            if self.rank != 0:
                with self.store() as store:
                    self.compare_versions(version, store.get(self.key(0)))
        except OSError:
            pass
        return result

    def arrive(self, version):
        import threading
        with self.store() as store:
            store.set(self.key(self.rank), version)
        if self.rank < 2:
            threading.Thread(target=self.watch_ranks, args=(self.rank or None,), daemon=True, name="ivyrun").start()

    def compare_versions(self, version, first):
        if first.split(".")[:2] != version.split(".")[:2]:
            self.say("versions", (
                "warning[IVY-P031]: %s is %s on rank %s and %s on rank %s: they may not understand each other\n"
                "  fix:   install one version on all hosts, such as: python -m pip install %s==%s" % (
                    self.package, version, self.named(self.rank), first, self.named(0), self.package,
                    first.split("+")[0])))


# What frameworks of this process have called it: rank and size by name.
_COUNTED = {}


def _agree(meeting, name, rank, size):
    for other, (its_rank, its_size) in _COUNTED.items():
        if (rank, size) != (its_rank, its_size) and other != name:
            meeting.say("disagree", (
                "warning[IVY-P037]: %s counts this process as rank %d of %d, and %s counts it as rank %d of %d\n"
                "  fix:   let ivyrun alone start the ranks, without mpirun or torchrun in between, and give no "
                "framework a rank of its own" % (other, its_rank, its_size, name, rank, size)))
    _COUNTED[name] = rank, size


def _compare(meeting, name, rank, size):
    _agree(meeting, name, rank, size)
    if size == meeting.size and rank != meeting.rank:
        meeting.say("order-" + name, (
            "warning[IVY-P037]: %s counts this worker as rank %d of %d, and the job counts it as rank %s\n"
            "  fix:   take rank and size from the variables (RANK, WORLD_SIZE); frameworks that are used together "
            "must agree" % (name, rank, size, meeting.named(meeting.rank))))


def _watch_accelerate(module, meeting):
    _after(module.PartialState, "__init__", lambda state: state.num_processes == 1 and _say_alone(
        meeting, "accelerate", "-x ACCELERATE_USE_CPU=true where no worker has an accelerator"))


def _watch_tensorflow(module, meeting):
    import json
    import os
    import sys
    own = _Meeting("tensorflow", "tensorflow", "tf.distribute.MultiWorkerMirroredStrategy()")
    strategy = module.CollectiveAllReduceStrategy
    run = strategy.__init__

    def __init__(*values, **named):
        if "TF_CONFIG" not in os.environ:
            run(*values, **named)
            return _say_alone(meeting, "TensorFlow's MultiWorkerMirroredStrategy",
                              "-B tensorflow gives each worker its TF_CONFIG")
        tasks = json.loads(os.environ["TF_CONFIG"])["cluster"]
        size = sum(len(tasks.get(task, ())) for task in ("chief", "worker", "ps"))
        if size != meeting.size:
            meeting.say("size-tensorflow", (
                "warning[IVY-P037]: TF_CONFIG names %d tasks, and the job has %d ranks\n"
                "  fix:   leave TF_CONFIG to -B tensorflow" % (size, meeting.size)))
            return run(*values, **named)
        own.around(lambda: run(*values, **named), sys.modules["tensorflow"].__version__)
    __init__.__doc__ = run.__doc__
    strategy.__init__ = __init__


# The first use of a device is the last moment for initialize(). Programs that import another way to
# reach the other ranks mean a JAX of their own in each.
def _watch_jax(module, meeting):
    import sys
    run = module.backends

    def backends():
        module.backends = run
        distributed = sys.modules.get("jax._src.distributed")
        is_alone = distributed is not None and distributed.global_state.client is None
        if is_alone and not any(name in sys.modules for name in ("ivycomm", "mpi4py", "torch.distributed", "horovod")):
            _say_alone(meeting, "JAX", "call jax.distributed.initialize() before anything else of JAX")
        return run()
    module.backends = backends


def _watch_dask(module, meeting):
    _after(module.Client, "__init__", lambda client: client.cluster is not None and _say_alone(
        meeting, "Dask", "--app dask starts one cluster for the job, and the script once"))


def _watch_ray(module, meeting):
    import os
    _after(module, "init", lambda _: "RAY_ADDRESS" in os.environ or _say_alone(
        meeting, "Ray", "--app ray starts one cluster for the job, and the script once"))


# What the script tells torch, before torch waits for ranks that never come.
def _is_torch_told_the_same(meeting, arguments):
    import os
    get = os.environ.get
    told = [arguments.get("rank", -1), arguments.get("world_size", -1)]
    rank, size = (int(get(name, "-1")) if word < 0 else word for word, name in zip(told, ("RANK", "WORLD_SIZE")))
    if rank >= 0 and size >= 0:
        _agree(meeting, "torch", rank, size)
    is_same = (rank, size) == (meeting.rank, meeting.size)
    if not is_same and (rank, size) != (-1, -1) and os.getpid() == _WORKER:
        meeting.say("differs-torch", (
            "note: init_process_group() was called with rank=%d, world_size=%d, but this is rank %s of %d\n"
            "  fix:   remove both arguments so that torch reads RANK and WORLD_SIZE; ignore this if you want a subgroup"
            % (rank, size, meeting.named(meeting.rank), meeting.size)))
    return is_same


def _watch_torch(module, meeting):
    import functools
    import inspect
    import sys
    own = _Meeting("torch", "torch", "torch.distributed.init_process_group()")
    run = module.init_process_group
    signature = inspect.signature(run)

    @functools.wraps(run)
    def init_process_group(*values, **named):
        try:
            is_ours = _is_torch_told_the_same(meeting, signature.bind(*values, **named).arguments)
        except Exception:
            is_ours = False
        call = lambda: run(*values, **named)  # noqa: E731
        result = own.around(call, str(sys.modules["torch"].__version__)) if is_ours else call()
        try:
            _compare(meeting, "torch", module.get_rank(), module.get_world_size())
        except Exception:
            pass
        return result
    module.init_process_group = init_process_group


def _watch_horovod(module, meeting):
    _after(module.HorovodBasics, "init", lambda basics: _compare(
        meeting, "Horovod", basics.rank(), basics.size()))


# XGBoost reads its tracker from arguments alone.
def _tell_xgboost(module, _):
    import os
    run = module.init

    def init(**given):
        for name in "dmlc_tracker_uri", "dmlc_tracker_port", "dmlc_task_id":
            value = os.environ.get(name.upper())
            if value is not None and "dmlc_communicator" not in given:
                given.setdefault(name, int(value) if name.endswith("port") else value)
        return run(**given)
    init.__doc__ = run.__doc__
    module.init = init


def _arm_worlds():
    import os
    import sys
    changes = {}
    if os.environ.get("IVY_WORLD_SIZE", "1") != "1":
        changes = {
            "accelerate.state": _watch_accelerate,
            "tensorflow.python.distribute.collective_all_reduce_strategy": _watch_tensorflow,
            "distributed.client": _watch_dask,
            "jax._src.xla_bridge": _watch_jax,
            "ray._private.worker": _watch_ray,
            "torch.distributed.distributed_c10d": _watch_torch,
            "horovod.common.basics": _watch_horovod,
        }
    if "DMLC_TRACKER_URI" in os.environ:
        changes["xgboost.collective"] = _tell_xgboost
    if not changes or "IVY_RANK" not in os.environ:
        return
    meeting = _JaxMeeting()
    sys.meta_path.insert(0, _Jax({
        name: lambda module, change=change: change(module, meeting) for name, change in changes.items()}))


)py";

}  // namespace

std::string_view python_hook_worlds() { return kWorlds; }

}  // namespace ivy
