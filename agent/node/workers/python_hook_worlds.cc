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


def _compare(meeting, name, rank, size):
    if size == meeting.size and rank != meeting.rank:
        meeting.say("order-" + name, (
            "warning[IVY-P037]: %s counts this worker as rank %d of %d, and the job counts it as rank %s\n"
            "  fix:   take rank and size from the variables (RANK, WORLD_SIZE); frameworks that are used together "
            "must agree" % (name, rank, size, meeting.named(meeting.rank))))


def _watch_accelerate(module, meeting):
    _after(module.PartialState, "__init__", lambda state: state.num_processes == 1 and _say_alone(
        meeting, "accelerate", "-x ACCELERATE_USE_CPU=true where no worker has an accelerator"))


def _watch_tensorflow(module, meeting):
    import os
    _after(module.CollectiveAllReduceStrategy, "__init__", lambda _: "TF_CONFIG" in os.environ or _say_alone(
        meeting, "TensorFlow's MultiWorkerMirroredStrategy", "-B tensorflow gives each worker its TF_CONFIG"))


def _watch_dask(module, meeting):
    _after(module.Client, "__init__", lambda client: client.cluster is not None and _say_alone(
        meeting, "Dask", "--app dask starts one cluster for the job, and the script once"))


def _watch_ray(module, meeting):
    import os
    _after(module, "init", lambda _: "RAY_ADDRESS" in os.environ or _say_alone(
        meeting, "Ray", "--app ray starts one cluster for the job, and the script once"))


def _watch_torch(module, meeting):
    _after(module, "init_process_group", lambda _: _compare(
        meeting, "torch", module.get_rank(), module.get_world_size()))


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
