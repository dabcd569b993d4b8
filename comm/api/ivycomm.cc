// SPDX-License-Identifier: Apache-2.0
// The lifetime of communicators, errors and work in the C interface. Collectives, messages and the
// job's store are in c_operations.cc, c_messages.cc and c_store.cc. ivycomm.h declares the
// functions as extern "C".
#include "comm/contract/ivycomm.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/api/c_interface.h"
#include "comm/api/struct_growth.h"
#include "comm/group/device/device_backend.h"
#include "comm/join/identity.h"
#include "comm/nccl/device_regions.h"
#include "comm/transports/shm/registered_memory.h"

using ivy::Result;
using namespace ivy::comm;               // NOLINT: the C interface of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

namespace {

constexpr std::int64_t kDefaultTimeoutMs = 600'000;
constexpr std::size_t kFirstMembersBytes =
    offsetof(ivy_members, rank_count) + sizeof(ivy_members::rank_count);
constexpr std::size_t kGroupNameBytesMax = 40;  // Names are sent in fields of fixed size.

// The sizes of the structs in their first version, which never change.
constexpr std::size_t kFirstFailureBytes =
    offsetof(ivy_failure, operation) + sizeof(ivy_failure::operation);
constexpr std::size_t kFirstOptionsBytes =
    offsetof(ivy_options, timeout_ms) + sizeof(ivy_options::timeout_ms);

}  // namespace

const char* ivy_last_error(void) { return last_text().c_str(); }

int ivy_last_failure(ivy_failure* failure) {
  if (failure == nullptr) return IVY_INVALID_ARGUMENT;
  ivy_failure own = {};
  own.kind = static_cast<std::int32_t>(last_failure().kind);
  own.rank = last_failure().rank;
  own.pid = last_failure().pid;
  own.signal = last_failure().signal;
  own.exit_code = last_failure().exit_code;
  own.sequence = last_failure().sequence;
  std::memcpy(own.host, last_failure().host, sizeof own.host);
  std::memcpy(own.operation, last_failure().operation, sizeof own.operation);
  return give_fields(own, kFirstFailureBytes, *failure) ? IVY_OK : IVY_INVALID_ARGUMENT;
}

const char* ivy_code_name(int code) {
  constexpr std::pair<int, const char*> kNames[] = {{IVY_OK, "OK"},
                                                    {IVY_CANCELLED, "Cancelled"},
                                                    {IVY_INVALID_ARGUMENT, "InvalidArgument"},
                                                    {IVY_DEADLINE_EXCEEDED, "DeadlineExceeded"},
                                                    {IVY_NOT_FOUND, "NotFound"},
                                                    {IVY_RESOURCE_EXHAUSTED, "ResourceExhausted"},
                                                    {IVY_FAILED_PRECONDITION, "FailedPrecondition"},
                                                    {IVY_ABORTED, "Aborted"},
                                                    {IVY_INTERNAL, "Internal"},
                                                    {IVY_UNAVAILABLE, "Unavailable"},
                                                    {IVY_UNAUTHENTICATED, "Unauthenticated"}};
  for (const auto& [known, name] : kNames) {
    if (known == code) return name;
  }
  return "Unknown";
}

const char* ivy_version(void) { return IVY_VERSION_TEXT; }
int ivy_abi_version(void) { return IVY_ABI_VERSION; }

int ivy_init(const ivy_options* options, ivy_comm** world) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (world == nullptr) return invalid("world is NULL");
    ivy_options own = {};
    own.rank = own.world_size = -1;
    if (options != nullptr && !take_fields(*options, kFirstOptionsBytes, own)) {
      return invalid("ivy_options.struct_bytes is not set to sizeof(ivy_options)");
    }
    watch_forks();
    IdentityRequest request;
    std::int64_t timeout_ms = kDefaultTimeoutMs;
    if (own.init_method != nullptr) request.init_method = own.init_method;
    if (own.rank >= 0) request.rank = static_cast<std::uint32_t>(own.rank);
    if (own.world_size >= 0) request.world_size = static_cast<std::uint32_t>(own.world_size);
    if (own.timeout_ms != 0) timeout_ms = own.timeout_ms;
    Result<Identity> identity = identify(request, [](std::string_view name) {
      const char* const value = std::getenv(std::string(name).c_str());
      return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    });
    if (!identity.ok()) return fail(identity.error());
    const auto timeout =
        std::chrono::duration_cast<std::chrono::milliseconds>(timeout_of(timeout_ms));
    Result<std::unique_ptr<JobMember>> job = JobMember::join(std::move(identity).value(), timeout);
    if (!job.ok()) return fail(job.error());
    Result<World> formed = (*job)->form_world();
    if (!formed.ok()) {
      const MaybeFailure& death = (*job)->init_failure();
      return death ? fail(*death) : fail(formed.error());
    }
    Handle made = make_handle();
    made->communicator = Communicator::of_world(**job, std::move(formed).value());
    note_world_begins();
    made->job = std::move(job).value();
    made->world = made.get();
    *world = made.release();
    return IVY_OK;
  });
}

namespace {

// Lets exactly one thread end a communicator and read the handle; the others get an error.
int begin_end(ivy_comm* comm, bool is_world) {
  IVY_CHECKED(check_process());
  if (comm == nullptr) return invalid("the communicator is NULL");
  if (comm->is_ending.exchange(true)) return ended_error();
  if ((comm->world == comm) == is_world) return IVY_OK;
  comm->is_ending.store(false);
  return invalid(is_world ? "ivy_finalize accepts only the world; use ivy_comm_free"
                          : "this is the world; use ivy_finalize");
}

// Takes all groups of a world that no other thread is freeing.
std::vector<Handle> take_groups(ivy_comm& world) {
  std::vector<Handle> taken;
  const std::lock_guard lock(world.mutex);
  taken.reserve(world.groups.size());
  for (ivy_comm* const group : world.groups) {
    if (!group->is_ending.exchange(true)) taken.emplace_back(group);
  }
  std::erase_if(world.groups, [&](const ivy_comm* group) {
    return std::any_of(taken.begin(), taken.end(),
                       [&](const Handle& each) { return each.get() == group; });
  });
  return taken;
}

// Waits until other threads have freed the groups that they are freeing, for which the world's
// connections are needed. The wait is as long as theirs: ivy_comm_free() has its own limits.
void wait_until_freed(ivy_comm& world) {
  std::unique_lock lock(world.mutex);
  world.group_freed.wait(lock, [&] { return world.groups.empty(); });
}

}  // namespace

int ivy_finalize(ivy_comm* world) {
  return guarded([&]() -> int {
    IVY_CHECKED(begin_end(world, true));
    const Handle ending(world);
    // After a failed repair there is no world to leave.
    if (world->communicator == nullptr) return IVY_OK;
    Outcome detached;
    std::vector<Handle> groups = take_groups(*world);
    wait_until_freed(*world);
    // Settle the groups first, because NCCL's communicator of a group may be split from the
    // world's.
    for (const Handle& group : groups) {
      const Outcome settled = group->communicator->finish_device_work();
      if (detached.code == IVY_OK) detached = settled;
    }
    const Outcome own = world->communicator->finalize();
    if (detached.code == IVY_OK) detached = own;
    for (Handle& group : groups) {
      const Outcome left = group->communicator->leave_group();
      if (detached.code == IVY_OK) detached = left;
      group.reset();
    }
    return detached.code == IVY_OK ? IVY_OK : fail(detached.failure());
  });
}

namespace {

// Queries a property of a communicator's ranks. Returns -1 or an empty text if the communicator has
// ended.
template <class Question>
int query(const ivy_comm* comm, const Question& question) {
  if (comm == nullptr || comm->communicator == nullptr) return -1;
  return std::invoke(question, comm->communicator->ranks());
}

const char* query_text(const ivy_comm* comm, const std::string& (*question)(const Communicator&)) {
  if (comm == nullptr || comm->communicator == nullptr) return "";
  return question(*comm->communicator).c_str();
}

}  // namespace

int ivy_comm_rank(const ivy_comm* comm) { return query(comm, &Membership::rank); }
int ivy_comm_size(const ivy_comm* comm) { return query(comm, &Membership::size); }
int ivy_comm_local_rank(const ivy_comm* comm) { return query(comm, &Membership::local_rank); }
int ivy_comm_local_size(const ivy_comm* comm) { return query(comm, &Membership::local_size); }
int ivy_comm_node_rank(const ivy_comm* comm) { return query(comm, &Membership::node_rank); }
int ivy_comm_node_count(const ivy_comm* comm) { return query(comm, &Membership::node_count); }
int ivy_comm_world_rank(const ivy_comm* comm, int rank) {
  return query(comm, [rank](const Membership& ranks) { return ranks.world_rank(rank); });
}
const char* ivy_comm_source(const ivy_comm* comm) {
  return query_text(
      comm, [](const Communicator& each) -> const std::string& { return each.job().source(); });
}
const char* ivy_comm_name(const ivy_comm* comm) {
  return query_text(
      comm, [](const Communicator& each) -> const std::string& { return each.ranks().name(); });
}

namespace {

struct Ranks {
  const int32_t* first;
  int32_t count;
};

int check_group(const ivy_comm* comm, Ranks ranks, ivy_comm** group) {
  if (group == nullptr || (ranks.first == nullptr && ranks.count != 0) || ranks.count < 0) {
    return invalid("group or ranks is NULL");
  }
  const Membership& members = comm->communicator->ranks();
  std::vector<bool> seen(static_cast<std::size_t>(members.size()), false);
  for (std::int32_t i = 0; i < ranks.count; ++i) {
    const std::int32_t rank = ranks.first[i];
    if (rank < 0 || rank >= members.size() || seen[static_cast<std::size_t>(rank)]) {
      return invalid("ranks[" + std::to_string(i) + "] = " + std::to_string(rank) +
                     " is not a rank of communicator " + members.name() + ", or is listed twice");
    }
    seen[static_cast<std::size_t>(rank)] = true;
  }
  return IVY_OK;
}

int add_group(ivy_comm* comm, Result<std::unique_ptr<Communicator>> made, ivy_comm** group) {
  if (!made.ok()) {
    const MaybeFailure failure = comm->communicator->failure();
    return failure ? fail(*failure) : fail(made.error());
  }
  *group = nullptr;
  if (*made == nullptr) return IVY_OK;
  Handle made_group = make_handle();
  made_group->communicator = std::move(made).value();
  made_group->world = comm->world;
  const std::lock_guard lock(comm->world->mutex);
  comm->world->groups.push_back(made_group.get());
  *group = made_group.release();
  return IVY_OK;
}

}  // namespace

int ivy_comm_group(ivy_comm* comm, const int32_t* ranks, int32_t rank_count, ivy_comm** group) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_group(comm, {ranks, rank_count}, group));
    return add_group(
        comm, comm->communicator->make_group({ranks, static_cast<std::size_t>(rank_count)}), group);
  });
}

int ivy_comm_group_of_members(ivy_comm* comm, const ivy_members* members, ivy_comm** group) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    ivy_members own = {};
    if (members == nullptr || !take_fields(*members, kFirstMembersBytes, own)) {
      return invalid("ivy_members.struct_bytes is not set to sizeof(ivy_members)");
    }
    IVY_CHECKED(check_group(comm, {own.ranks, own.rank_count}, group));
    const std::string name = own.name != nullptr ? own.name : "";
    if (name.empty() || name.size() > kGroupNameBytesMax) {
      return invalid("the name of a group must have 1 to " + std::to_string(kGroupNameBytesMax) +
                     " bytes");
    }
    const std::span<const std::int32_t> ranks(own.ranks, static_cast<std::size_t>(own.rank_count));
    const std::int32_t self = comm->communicator->ranks().rank();
    if (std::find(ranks.begin(), ranks.end(), self) == ranks.end()) {
      return invalid("rank " + std::to_string(self) + " creates group " + name +
                     " but is not one of its ranks");
    }
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        own.timeout_ms == 0 ? std::chrono::nanoseconds(0) : timeout_of(own.timeout_ms));
    MaybeFailure death;
    Result<std::unique_ptr<Communicator>> made =
        comm->communicator->make_group_of_members(name, ranks, timeout, death);
    // Report the call's own failure; the reason why `comm` is broken does not matter here.
    if (!made.ok()) return death ? fail(*death) : fail(made.error());
    return add_group(comm, std::move(made), group);
  });
}

int ivy_comm_split(ivy_comm* comm, int32_t color, int32_t key, ivy_comm** group) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    if (group == nullptr) return invalid("group is NULL");
    return add_group(comm, comm->communicator->split(color, key), group);
  });
}

namespace {

// Removes a group from its world's list, at the very end: the world may end from then on.
struct Unlisting {
  ivy_comm& world;
  ivy_comm* group;
  ~Unlisting() {
    const std::lock_guard lock(world.mutex);
    std::erase(world.groups, group);
    world.group_freed.notify_all();
  }
};

}  // namespace

int ivy_comm_free(ivy_comm* group) {
  return guarded([&]() -> int {
    IVY_CHECKED(begin_end(group, false));
    const Unlisting unlisting{*group->world, group};
    const Handle ending(group);
    const Outcome left = group->communicator->leave_group();
    return left.code == IVY_OK ? IVY_OK : fail(left.failure());
  });
}

namespace {

// Ends the communicators of a broken world. Their knowledge of dead ranks would be lost, so it is
// saved first. Returns the state that the old world passes on to the new one.
InheritedDeviceState end_broken(ivy_comm& world, RepairAim aim) {
  const std::string reason = "it calls " + std::string(name_of(aim)) + " of the world";
  std::vector<Handle> groups = take_groups(world);
  std::vector<Communicator*> all;
  for (const Handle& group : groups) all.push_back(group->communicator.get());
  if (world.communicator != nullptr) all.push_back(world.communicator.get());
  for (Communicator* const each : all) {
    if (const auto failure = each->failure()) world.job->repairs().note_missed(*failure);
    each->abort(reason);
  }
  groups.clear();
  wait_until_freed(world);
  InheritedDeviceState inherited;
  if (world.communicator != nullptr)
    inherited = world.communicator->device().release_device_state();
  world.communicator.reset();
  return inherited;
}

// While this object exists, no other thread can end the world or start a second repair;
// ivy_comm_abort ends the repair.
struct UnderRepair {
  explicit UnderRepair(ivy_comm& repaired) : world(repaired) { world.is_in_repair.store(true); }
  ~UnderRepair() {
    world.is_in_repair.store(false);
    world.is_ending.store(false);
  }
  UnderRepair(const UnderRepair&) = delete;
  UnderRepair& operator=(const UnderRepair&) = delete;
  ivy_comm& world;
};

int repair(ivy_comm* world, RepairAim aim, const ivy_call* call) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(begin_end(world, true));
    const UnderRepair mark(*world);
    const auto timeout = options_of(call).timeout;
    InheritedDeviceState inherited = end_broken(*world, aim);
    Result<World> repaired = world->job->repair_world(
        aim, std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
    if (!repaired.ok()) return fail(repaired.error());
    world->communicator = Communicator::of_world(*world->job, std::move(repaired).value());
    world->communicator->device().inherit(std::move(inherited));
    return IVY_OK;
  });
}

}  // namespace

int ivy_comm_shrink(ivy_comm* world, const ivy_call* call) {
  return repair(world, RepairAim::kShrink, call);
}

int ivy_comm_grow(ivy_comm* world, const ivy_call* call) {
  return repair(world, RepairAim::kGrow, call);
}

int ivy_restart_count(void) {
  const char* const count = std::getenv("IVY_REJOIN");
  return count != nullptr ? std::max(0, std::atoi(count)) : 0;
}

int ivy_comm_abort(ivy_comm* comm, const char* reason) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (comm != nullptr && comm->is_in_repair.load()) {
      comm->job->repairs().interrupt();
      return IVY_OK;
    }
    IVY_CHECKED(check_comm(comm));
    comm->communicator->abort(reason != nullptr ? reason : "");
    return IVY_OK;
  });
}

int ivy_mem_alloc(ivy_comm* comm, size_t bytes, void** memory) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    if (memory == nullptr) return invalid("memory is NULL");
    const Result<void*> allocated = registered_memory::allocate(bytes, comm->world);
    if (!allocated.ok()) return fail(allocated.error());
    *memory = *allocated;
    return IVY_OK;
  });
}

int ivy_mem_free(void* memory) {
  return guarded([&]() -> int {
    // A forked child must not free it, which would empty the parent's memory file.
    IVY_CHECKED(check_process());
    if (memory == nullptr || registered_memory::release(memory)) return IVY_OK;
    if (nccl::device_regions::release(memory)) return IVY_OK;
    return invalid(
        "memory is not a pointer from ivy_mem_alloc or ivy_mem_alloc_device, or was already "
        "freed");
  });
}

int ivy_work_wait(ivy_work* work, int64_t timeout_ms) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr) return invalid("work is NULL");
    const std::optional<Outcome> outcome = work->work->wait(std::chrono::milliseconds(timeout_ms));
    if (!outcome) return fail(IVY_DEADLINE_EXCEEDED, "the operation is still running");
    return outcome->code == IVY_OK ? IVY_OK : fail(outcome->failure());
  });
}

int ivy_work_hold_back(ivy_work* work, void* stream) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr) return invalid("work is NULL");
    const std::optional<Outcome> outcome = work->work->hold_back(stream);
    return outcome->code == IVY_OK ? IVY_OK : fail(outcome->failure());
  });
}

int ivy_work_test(ivy_work* work, int* done) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr || done == nullptr) return invalid("work or done is NULL");
    const std::optional<Outcome> outcome = work->work->test();
    *done = outcome ? 1 : 0;
    if (!outcome || outcome->code == IVY_OK) return IVY_OK;
    return fail(outcome->failure());
  });
}

int ivy_work_notify(ivy_work* work, int descriptor, uint64_t token) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr) return invalid("work is NULL");
    if (descriptor < 0) return invalid("descriptor is " + std::to_string(descriptor));
    work->work->notify({descriptor, token});
    return IVY_OK;
  });
}

int ivy_work_abort(ivy_work* work) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr) return invalid("work is NULL");
    if (!work->work->test()) work->communicator->abort("an operation was aborted");
    return IVY_OK;
  });
}

int ivy_work_timing(ivy_work* work, double* queued, double* ran) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr || queued == nullptr || ran == nullptr) return invalid("a pointer is NULL");
    const WorkTiming timing = work->work->timing();
    *queued = timing.queued.count();
    *ran = timing.ran.count();
    return IVY_OK;
  });
}

int ivy_work_free(ivy_work* work) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr) return IVY_OK;
    work->work->wait(std::chrono::milliseconds(-1));
    delete work;
    return IVY_OK;
  });
}
