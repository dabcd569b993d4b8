// SPDX-License-Identifier: Apache-2.0
#include "comm/api/c_interface.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <utility>

#include "comm/transports/shm/registered_memory.h"

namespace ivy::comm::c_interface {
namespace {

// Longer than any operation may take. Adding it to a time point cannot overflow.
constexpr std::chrono::hours kForever{24 * 365};

// The size of this many blocks of 2^32 elements of 16 bytes still fits into size_t.
constexpr std::size_t kFewBlocks = std::size_t{1} << 20;

thread_local std::string text_of_last;
thread_local Failure failure_of_last;
thread_local std::unique_ptr<ivy_work> next_work;

std::atomic<bool> is_forked_child{false};
std::atomic<int> worlds{0};

struct EndedHandles {
  std::mutex mutex;
  std::deque<ivy_comm*> handles;  // Guarded by `mutex`. In the order in which they ended.
};
// Never destroyed, because threads may still use it while the process exits.
EndedHandles& ended_handles() {
  static EndedHandles& ended = *new EndedHandles;
  return ended;
}

}  // namespace

const std::string& last_text() { return text_of_last; }
const Failure& last_failure() { return failure_of_last; }

int fail(const Failure& failure) {
  failure_of_last = failure;
  text_of_last = failure.text;
  return failure.code;
}

int fail(int code, std::string text) {
  Failure failure = make_failure(FailureKind::kOther, text);
  failure.code = code;
  failure_of_last = failure;
  text_of_last = std::move(text);
  return code;
}

int fail(const Error& error) {
  std::string text = error.message;
  if (!error.fix.empty()) text += "; " + error.fix;
  return fail(static_cast<int>(error.code), std::move(text));
}

int invalid(const std::string& text) { return fail(IVY_INVALID_ARGUMENT, text); }

std::chrono::nanoseconds timeout_of(std::int64_t timeout_ms) {
  // Compared before the conversion to nanoseconds, of which 64 bits hold 292 years.
  const std::chrono::milliseconds timeout(timeout_ms);
  return timeout_ms < 0 || timeout > kForever ? kForever : std::chrono::nanoseconds(timeout);
}

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (worlds.load() > 0) is_forked_child.store(true);
  });
  static_cast<void>(registered);
}

void note_world_begins() { worlds.fetch_add(1); }
void note_world_ends() { worlds.fetch_sub(1); }

int check_process() {
  if (!is_forked_child.load(std::memory_order_relaxed)) return IVY_OK;
  return fail(
      IVY_FAILED_PRECONDITION,
      "this process was forked from a worker, so it does not belong to the job; call fork before "
      "ivy_init, or start the child with exec");
}

Handle make_handle() {
  EndedHandles& ended = ended_handles();
  const std::lock_guard lock(ended.mutex);
  if (ended.handles.size() < kEndedHandlesKept) return Handle(new ivy_comm);
  Handle oldest(ended.handles.front());
  ended.handles.pop_front();
  oldest->is_ending.store(false);
  return oldest;
}

void EndHandle::operator()(ivy_comm* comm) const noexcept {
  comm->is_ending.store(true);
  for (ivy_comm* const group : comm->groups) (*this)(group);
  comm->groups.clear();
  comm->communicator.reset();
  if (comm->job != nullptr) {
    registered_memory::unregister_all(comm);
    comm->job.reset();
    note_world_ends();
  }
  comm->world = nullptr;
  EndedHandles& ended = ended_handles();
  const std::lock_guard lock(ended.mutex);
  try {
    ended.handles.push_back(comm);
  } catch (const std::bad_alloc&) {
    // Leak the handle's few bytes rather than free them under a stale pointer.
  }
}

int check_comm(const ivy_comm* comm) {
  if (const int code = check_process(); code != IVY_OK) return code;
  if (comm == nullptr) return invalid("the communicator is NULL");
  if (comm->communicator != nullptr) return IVY_OK;
  if (comm->job == nullptr) return ended_error();
  return fail(IVY_FAILED_PRECONDITION,
              "the world is broken and not repaired: call shrink or grow again, or finalize it");
}

int ended_error() {
  return fail(IVY_FAILED_PRECONDITION,
              "this communicator no longer exists: it was freed, or its world was finalized");
}

int check_call(const ivy_call* call) {
  // Accepts the struct as it was before it had fields for device memory.
  if (call == nullptr || call->struct_bytes >= offsetof(ivy_call, stream)) return IVY_OK;
  return invalid("ivy_call.struct_bytes is not set to sizeof(ivy_call)");
}

int check_type(int dtype) {
  if (dtype >= 0 && dtype < kDtypeCount) return IVY_OK;
  return invalid("dtype " + std::to_string(dtype) + " is unknown");
}

int check_reduction(int dtype, int op) {
  if (const int code = check_type(dtype); code != IVY_OK) return code;
  if (op < 0 || op >= kReduceOpCount) return invalid("op " + std::to_string(op) + " is unknown");
  if (is_reducible(static_cast<Dtype>(dtype), static_cast<ReduceOp>(op))) return IVY_OK;
  return invalid(std::string(reduce_op_name(static_cast<ReduceOp>(op))) + " of " +
                 std::string(dtype_name(static_cast<Dtype>(dtype))) +
                 " is not defined; see \"Reduction\" in docs/collectives.md");
}

int check_root(const ivy_comm* comm, int root) {
  const Membership& ranks = comm->communicator->ranks();
  if (root >= 0 && root < ranks.size()) return IVY_OK;
  return invalid("root " + std::to_string(root) + " is not a rank of communicator " + ranks.name() +
                 ", whose size is " + std::to_string(ranks.size()));
}

int check_buffer(const void* buffer, std::size_t count, const char* name) {
  if (buffer == IVY_IN_PLACE) {
    return invalid(std::string(name) + " is IVY_IN_PLACE, which is not allowed there");
  }
  if (buffer != nullptr || count == 0) return IVY_OK;
  return invalid(std::string(name) + " is NULL with a count of " + std::to_string(count));
}

std::size_t max_elements(int dtype) {
  return std::numeric_limits<std::size_t>::max() / 4 / element_bytes(static_cast<Dtype>(dtype));
}

int check_count(std::size_t count, int dtype, std::size_t blocks) {
  // Nearly all calls end here. The division below would slow a small operation measurably.
  if (count <= std::numeric_limits<std::uint32_t>::max() && blocks <= kFewBlocks) return IVY_OK;
  if (count <= max_elements(dtype) / std::max<std::size_t>(1, blocks)) return IVY_OK;
  return invalid("a count of " + std::to_string(count) + " elements is too large");
}

CallOptions options_of(const ivy_call* call) {
  CallOptions options;
  if (call == nullptr) return options;
  if (call->timeout_ms != 0) options.timeout = timeout_of(call->timeout_ms);
  options.is_async = call->work != nullptr;
  constexpr std::size_t kWithInterrupt =
      offsetof(ivy_call, interrupt_context) + sizeof call->interrupt_context;
  if (!options.is_async && call->struct_bytes >= kWithInterrupt) {
    options.interrupt = {call->interrupt, call->interrupt_context};
  }
  if (options.is_async && next_work == nullptr) next_work = std::make_unique<ivy_work>();
  return options;
}

ivy_work* give_work(ivy_work contents) {
  *next_work = std::move(contents);
  return next_work.release();
}

int finish(ivy_comm* comm, const ivy_call* call, OperationResult called) {
  if (called.work != nullptr) {
    *call->work = give_work({std::move(called.work), nullptr, comm->communicator.get()});
    return IVY_OK;
  }
  return called.outcome.code == IVY_OK ? IVY_OK : fail(called.outcome.failure());
}

namespace {
char nothing[64];
}  // namespace

void* or_nothing(void* buffer) { return buffer != nullptr ? buffer : nothing; }
const void* or_nothing(const void* buffer) { return buffer != nullptr ? buffer : nothing; }

}  // namespace ivy::comm::c_interface
