// The C interface: checks what the caller gave, turns it into values, and turns failures into
// codes. No exception leaves this file.
#include "comm/ivycomm.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/identity.h"
#include "comm/job.h"

using ivy::Code;
using ivy::Error;
using ivy::Result;
using namespace ivy::comm;  // NOLINT: this file is the seam of that namespace.

struct ivy_comm {
  // The world owns the job and lists what was made from it.
  std::unique_ptr<Job> job;
  std::unique_ptr<Communicator> communicator;
  ivy_comm* world = nullptr;
  std::vector<ivy_comm*> groups;  // Of a world; guarded by `mutex`.
  std::mutex mutex;
};

struct ivy_work {
  std::shared_ptr<Work> work;
  std::shared_ptr<MessageRequest> message;  // Null: a collective.
  Communicator* communicator = nullptr;
};

namespace {

constexpr std::int64_t kDefaultTimeoutMs = 600'000;
// Longer than any operation may take; additions to the clock stay far from its end.
constexpr std::chrono::hours kForever{24 * 365};

thread_local std::string last_text;
thread_local Failure last_failure;

// Set in children of fork(): their threads, sockets and seats are the parent's.
std::atomic<bool> is_forked_child{false};
std::atomic<bool> has_communicators{false};

int fail(const Failure& failure) {
  last_failure = failure;
  last_text = failure.text;
  return failure.code;
}

int fail(int code, std::string text) {
  Failure failure = make_failure(FailureKind::kOther, text);
  failure.code = code;
  last_failure = failure;
  last_text = std::move(text);
  return code;
}

int fail(const Error& error) {
  std::string text = error.message;
  if (!error.fix.empty()) text += "; " + error.fix;
  return fail(static_cast<int>(error.code), std::move(text));
}

int invalid(const std::string& text) { return fail(IVY_INVALID_ARGUMENT, text); }

// Runs a body that may throw (memory, threads) and returns its code.
template <class Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(IVY_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& problem) {
    return fail(IVY_INTERNAL, problem.what());
  }
}

std::chrono::nanoseconds timeout_of(std::int64_t timeout_ms) {
  if (timeout_ms < 0) return kForever;
  return std::min<std::chrono::nanoseconds>(kForever, std::chrono::milliseconds(timeout_ms));
}

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (has_communicators.load()) is_forked_child.store(true);
  });
  static_cast<void>(registered);
}

// The checks that every call begins with.
int check_comm(const ivy_comm* comm) {
  if (is_forked_child.load(std::memory_order_relaxed)) {
    return fail(
        IVY_FAILED_PRECONDITION,
        "this process was forked from a worker: it has no place in the job; call fork before "
        "ivy_init, or start the child with exec");
  }
  if (comm == nullptr || comm->communicator == nullptr) {
    return invalid("the communicator is NULL or finalized");
  }
  return IVY_OK;
}

int check_call(const ivy_call* call) {
  if (call == nullptr || call->struct_bytes >= sizeof(ivy_call)) return IVY_OK;
  return invalid("ivy_call.struct_bytes is not set to sizeof(ivy_call)");
}

int check_type(int dtype) {
  if (dtype >= 0 && dtype < kDtypeCount) return IVY_OK;
  return invalid("dtype " + std::to_string(dtype) + " is not known");
}

int check_reduction(int dtype, int op) {
  if (const int code = check_type(dtype); code != IVY_OK) return code;
  if (op < 0 || op >= kReduceOpCount) return invalid("op " + std::to_string(op) + " is not known");
  if (is_reducible(static_cast<Dtype>(dtype), static_cast<ReduceOp>(op))) return IVY_OK;
  return invalid(std::string(reduce_op_name(static_cast<ReduceOp>(op))) + " of " +
                 std::string(dtype_name(static_cast<Dtype>(dtype))) +
                 " has no meaning; see \"Reduction\" in comm/README.md");
}

int check_root(const ivy_comm* comm, int root) {
  if (root >= 0 && root < comm->communicator->size()) return IVY_OK;
  return invalid("root " + std::to_string(root) + " is no rank of communicator " +
                 comm->communicator->name() + ", which has " +
                 std::to_string(comm->communicator->size()));
}

int check_buffer(const void* buffer, std::size_t count, const char* name) {
  if (buffer != nullptr || count == 0) return IVY_OK;
  return invalid(std::string(name) + " is NULL with a count of " + std::to_string(count));
}

// Total bytes must be countable.
int check_count(std::size_t count, int dtype, std::size_t blocks) {
  const std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
  const std::size_t each =
      element_bytes(static_cast<Dtype>(dtype)) * std::max<std::size_t>(1, blocks);
  if (count <= most / each) return IVY_OK;
  return invalid("a count of " + std::to_string(count) + " elements is too large");
}

#define IVY_CHECKED(expression)                      \
  do {                                               \
    const int ivy_checked_ = (expression);           \
    if (ivy_checked_ != IVY_OK) return ivy_checked_; \
  } while (false)

CallOptions options_of(const ivy_call* call) {
  CallOptions options;
  if (call == nullptr) return options;
  if (call->timeout_ms != 0) options.timeout = timeout_of(call->timeout_ms);
  options.is_async = call->work != nullptr;
  options.factor = call->factor;
  return options;
}

int finish(ivy_comm* comm, const ivy_call* call, Called called) {
  if (called.work != nullptr) {
    *call->work = new ivy_work{std::move(called.work), nullptr, comm->communicator.get()};
    return IVY_OK;
  }
  return called.outcome.code == IVY_OK ? IVY_OK : fail(called.outcome.failure);
}

// Null pointers of empty buffers become something that may be pointed at.
char nothing[64];
void* or_nothing(void* buffer) { return buffer != nullptr ? buffer : nothing; }
const void* or_nothing(const void* buffer) { return buffer != nullptr ? buffer : nothing; }

std::size_t size_of(int dtype) { return element_bytes(static_cast<Dtype>(dtype)); }

OperationShape shape_for(Operation operation, int dtype, std::size_t count, int root = -1) {
  OperationShape shape;
  shape.operation = operation;
  shape.dtype = static_cast<Dtype>(dtype);
  shape.count = count;
  shape.root = root;
  return shape;
}

std::vector<Block> even_blocks(std::int32_t size, std::size_t bytes) {
  std::vector<Block> blocks(static_cast<std::size_t>(size));
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) blocks[rank] = {rank * bytes, bytes};
  return blocks;
}

std::vector<Block> uneven_blocks(std::int32_t size, const std::size_t* counts,
                                 const std::size_t* displacements, std::size_t element) {
  std::vector<Block> blocks(static_cast<std::size_t>(size));
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    const std::size_t begin = displacements != nullptr ? displacements[rank] : next;
    blocks[rank] = {begin * element, counts[rank] * element};
    next += counts[rank];
  }
  return blocks;
}

}  // namespace

extern "C" {

const char* ivy_last_error(void) { return last_text.c_str(); }

int ivy_last_failure(ivy_failure* failure) {
  if (failure == nullptr || failure->struct_bytes < sizeof(ivy_failure)) {
    return IVY_INVALID_ARGUMENT;
  }
  failure->kind = static_cast<std::int32_t>(last_failure.kind);
  failure->rank = last_failure.rank;
  failure->pid = last_failure.pid;
  failure->signal = last_failure.signal;
  failure->exit_code = last_failure.exit_code;
  failure->sequence = last_failure.sequence;
  std::memcpy(failure->host, last_failure.host, sizeof failure->host);
  std::memcpy(failure->operation, last_failure.operation, sizeof failure->operation);
  return IVY_OK;
}

const char* ivy_code_name(int code) {
  switch (code) {
    case IVY_OK:
      return "OK";
    case IVY_CANCELLED:
      return "Cancelled";
    case IVY_INVALID_ARGUMENT:
      return "InvalidArgument";
    case IVY_DEADLINE_EXCEEDED:
      return "DeadlineExceeded";
    case IVY_RESOURCE_EXHAUSTED:
      return "ResourceExhausted";
    case IVY_FAILED_PRECONDITION:
      return "FailedPrecondition";
    case IVY_ABORTED:
      return "Aborted";
    case IVY_INTERNAL:
      return "Internal";
    case IVY_UNAVAILABLE:
      return "Unavailable";
    case IVY_UNAUTHENTICATED:
      return "Unauthenticated";
    default:
      return "Unknown";
  }
}

const char* ivy_version(void) { return IVY_VERSION_TEXT; }
int ivy_abi_version(void) { return IVY_ABI_VERSION; }

// ---- Life -------------------------------------------------------------------------------------

int ivy_init(const ivy_options* options, ivy_comm** world) {
  return guarded([&] {
    if (world == nullptr) return invalid("world is NULL");
    if (options != nullptr && options->struct_bytes < sizeof(ivy_options)) {
      return invalid("ivy_options.struct_bytes is not set to sizeof(ivy_options)");
    }
    watch_forks();
    IdentityRequest request;
    std::int64_t timeout_ms = kDefaultTimeoutMs;
    if (options != nullptr) {
      if (options->init_method != nullptr) request.init_method = options->init_method;
      if (options->rank >= 0) request.rank = static_cast<std::uint32_t>(options->rank);
      if (options->world_size >= 0)
        request.world_size = static_cast<std::uint32_t>(options->world_size);
      if (options->timeout_ms != 0) timeout_ms = options->timeout_ms;
    }
    Result<Identity> identity = identify(request, [](std::string_view name) {
      const char* const value = std::getenv(std::string(name).c_str());
      return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    });
    if (!identity.ok()) return fail(identity.error());
    const auto timeout =
        std::chrono::duration_cast<std::chrono::milliseconds>(timeout_of(timeout_ms));
    Result<std::unique_ptr<Job>> job = Job::join(std::move(identity).value(), timeout);
    if (!job.ok()) return fail(job.error());
    Result<std::unique_ptr<Communicator>> communicator = (*job)->make_world();
    if (!communicator.ok()) return fail(communicator.error());
    auto made = std::make_unique<ivy_comm>();
    made->job = std::move(job).value();
    made->communicator = std::move(communicator).value();
    made->world = made.get();
    has_communicators.store(true);
    is_forked_child.store(false);
    *world = made.release();
    return static_cast<int>(IVY_OK);
  });
}

int ivy_finalize(ivy_comm* world) {
  return guarded([&] {
    IVY_CHECKED(check_comm(world));
    if (world->world != world) return invalid("ivy_finalize wants the world; use ivy_comm_free");
    for (ivy_comm* group : world->groups) delete group;
    world->communicator.reset();
    delete world;
    return static_cast<int>(IVY_OK);
  });
}

int ivy_comm_rank(const ivy_comm* comm) { return comm->communicator->rank(); }
int ivy_comm_size(const ivy_comm* comm) { return comm->communicator->size(); }
int ivy_comm_local_rank(const ivy_comm* comm) { return comm->communicator->local_rank(); }
int ivy_comm_local_size(const ivy_comm* comm) { return comm->communicator->local_size(); }
int ivy_comm_node_rank(const ivy_comm* comm) { return comm->communicator->node_rank(); }
int ivy_comm_node_count(const ivy_comm* comm) { return comm->communicator->node_count(); }
int ivy_comm_world_rank(const ivy_comm* comm, int rank) {
  return comm->communicator->world_rank(rank);
}
const char* ivy_comm_name(const ivy_comm* comm) { return comm->communicator->name().c_str(); }

namespace {

int add_group(ivy_comm* comm, Result<std::unique_ptr<Communicator>> made, ivy_comm** group) {
  if (!made.ok()) {
    const std::optional<Failure> failure = comm->communicator->failure();
    return failure ? fail(*failure) : fail(made.error());
  }
  *group = nullptr;
  if (*made == nullptr) return IVY_OK;
  auto seat = std::make_unique<ivy_comm>();
  seat->communicator = std::move(made).value();
  seat->world = comm->world;
  const std::lock_guard lock(comm->world->mutex);
  comm->world->groups.push_back(seat.get());
  *group = seat.release();
  return IVY_OK;
}

}  // namespace

int ivy_comm_group(ivy_comm* comm, const int32_t* ranks, int32_t rank_count, ivy_comm** group) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    if (group == nullptr || (ranks == nullptr && rank_count != 0) || rank_count < 0) {
      return invalid("group or ranks is NULL");
    }
    std::vector<bool> seen(static_cast<std::size_t>(comm->communicator->size()), false);
    for (std::int32_t i = 0; i < rank_count; ++i) {
      if (ranks[i] < 0 || ranks[i] >= comm->communicator->size() ||
          seen[static_cast<std::size_t>(ranks[i])]) {
        return invalid("ranks[" + std::to_string(i) + "] = " + std::to_string(ranks[i]) +
                       " is no rank of communicator " + comm->communicator->name() +
                       ", or stands there twice");
      }
      seen[static_cast<std::size_t>(ranks[i])] = true;
    }
    return add_group(
        comm, comm->communicator->make_group({ranks, static_cast<std::size_t>(rank_count)}), group);
  });
}

int ivy_comm_split(ivy_comm* comm, int32_t color, int32_t key, ivy_comm** group) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    if (group == nullptr) return invalid("group is NULL");
    return add_group(comm, comm->communicator->split(color, key), group);
  });
}

int ivy_comm_free(ivy_comm* group) {
  return guarded([&] {
    IVY_CHECKED(check_comm(group));
    if (group->world == group) return invalid("this is the world; use ivy_finalize");
    {
      const std::lock_guard lock(group->world->mutex);
      std::erase(group->world->groups, group);
    }
    delete group;
    return static_cast<int>(IVY_OK);
  });
}

int ivy_comm_abort(ivy_comm* comm, const char* reason) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    comm->communicator->abort(reason != nullptr ? reason : "");
    return static_cast<int>(IVY_OK);
  });
}

// ---- Operations -------------------------------------------------------------------------------

int ivy_barrier(ivy_comm* comm, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    return finish(comm, call, comm->communicator->barrier(options_of(call)));
  });
}

int ivy_all_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_count(count, dtype, 1));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    return finish(comm, call,
                  comm->communicator->all_reduce(or_nothing(send), or_nothing(recv), count,
                                                 static_cast<Dtype>(dtype),
                                                 static_cast<ReduceOp>(op), options_of(call)));
  });
}

int ivy_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
               int root, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    if (is_root) IVY_CHECKED(check_buffer(recv, count, "recv"));
    return finish(comm, call,
                  comm->communicator->reduce(or_nothing(send), or_nothing(recv), count,
                                             static_cast<Dtype>(dtype), static_cast<ReduceOp>(op),
                                             root, options_of(call)));
  });
}

int ivy_broadcast(ivy_comm* comm, void* buffer, size_t count, int dtype, int root,
                  const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(count, dtype, 1));
    IVY_CHECKED(check_buffer(buffer, count, "buffer"));
    return finish(comm, call,
                  comm->communicator->broadcast(or_nothing(buffer), count,
                                                static_cast<Dtype>(dtype), root, options_of(call)));
  });
}

int ivy_all_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    const std::size_t bytes = count * size_of(dtype);
    if (send == IVY_IN_PLACE) {
      send = static_cast<char*>(or_nothing(recv)) +
             static_cast<std::size_t>(comm->communicator->rank()) * bytes;
    }
    IVY_CHECKED(check_buffer(send, count, "send"));
    return finish(comm, call,
                  comm->communicator->all_gather(shape_for(Operation::kAllGather, dtype, count),
                                                 or_nothing(send), or_nothing(recv),
                                                 even_blocks(size, bytes), options_of(call)));
  });
}

int ivy_all_gather_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                     const size_t* displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    if (counts == nullptr) return invalid("counts is NULL");
    const std::int32_t size = comm->communicator->size();
    const auto rank = static_cast<std::size_t>(comm->communicator->rank());
    std::vector<Block> blocks = uneven_blocks(size, counts, displacements, size_of(dtype));
    std::size_t total = 0;
    for (std::int32_t i = 0; i < size; ++i) total += counts[i];
    IVY_CHECKED(check_count(total, dtype, 1));
    IVY_CHECKED(check_buffer(recv, total, "recv"));
    if (send == IVY_IN_PLACE) send = static_cast<char*>(or_nothing(recv)) + blocks[rank].offset;
    IVY_CHECKED(check_buffer(send, counts[rank], "send"));
    const std::uint64_t hash = counts_fingerprint({counts, static_cast<std::size_t>(size)});
    return finish(comm, call,
                  comm->communicator->all_gather(shape_for(Operation::kAllGatherV, dtype, hash),
                                                 or_nothing(send), or_nothing(recv),
                                                 std::move(blocks), options_of(call)));
  });
}

int ivy_reduce_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    const auto size = static_cast<std::size_t>(comm->communicator->size());
    IVY_CHECKED(check_count(count, dtype, size));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    OperationShape shape = shape_for(Operation::kReduceScatter, dtype, count);
    shape.op = static_cast<ReduceOp>(op);
    return finish(comm, call,
                  comm->communicator->reduce_scatter(shape, or_nothing(send), or_nothing(recv),
                                                     std::vector<std::size_t>(size, count),
                                                     options_of(call)));
  });
}

int ivy_reduce_scatter_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                         int dtype, int op, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    if (counts == nullptr) return invalid("counts is NULL");
    const auto size = static_cast<std::size_t>(comm->communicator->size());
    std::vector<std::size_t> list(counts, counts + size);
    std::size_t total = 0;
    for (const std::size_t count : list) total += count;
    IVY_CHECKED(check_count(total, dtype, 1));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, total, "send"));
    IVY_CHECKED(
        check_buffer(recv, list[static_cast<std::size_t>(comm->communicator->rank())], "recv"));
    OperationShape shape =
        shape_for(Operation::kReduceScatterV, dtype, counts_fingerprint({counts, size}));
    shape.op = static_cast<ReduceOp>(op);
    return finish(comm, call,
                  comm->communicator->reduce_scatter(shape, or_nothing(send), or_nothing(recv),
                                                     std::move(list), options_of(call)));
  });
}

int ivy_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
               const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    const bool is_root = comm->communicator->rank() == root;
    const std::size_t bytes = count * size_of(dtype);
    if (is_root) IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can gather in place");
      send = static_cast<char*>(or_nothing(recv)) + static_cast<std::size_t>(root) * bytes;
    }
    IVY_CHECKED(check_buffer(send, count, "send"));
    return finish(comm, call,
                  comm->communicator->gather(
                      shape_for(Operation::kGather, dtype, count, root), or_nothing(send), bytes,
                      or_nothing(recv), is_root ? even_blocks(size, bytes) : std::vector<Block>(),
                      options_of(call)));
  });
}

int ivy_gather_v(ivy_comm* comm, const void* send, size_t send_count, void* recv,
                 const size_t* counts, const size_t* displacements, int dtype, int root,
                 const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(send_count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    std::vector<Block> blocks;
    if (is_root) {
      if (counts == nullptr) return invalid("counts is NULL at the root");
      blocks = uneven_blocks(comm->communicator->size(), counts, displacements, size_of(dtype));
    }
    if (send == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can gather in place");
      send = static_cast<char*>(or_nothing(recv)) + blocks[static_cast<std::size_t>(root)].offset;
      send_count = counts[root];
    }
    IVY_CHECKED(check_buffer(send, send_count, "send"));
    return finish(
        comm, call,
        comm->communicator->gather(shape_for(Operation::kGatherV, dtype, 0, root), or_nothing(send),
                                   send_count * size_of(dtype), or_nothing(recv), std::move(blocks),
                                   options_of(call)));
  });
}

int ivy_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
                const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    const bool is_root = comm->communicator->rank() == root;
    const std::size_t bytes = count * size_of(dtype);
    if (is_root) IVY_CHECKED(check_buffer(send, count, "send"));
    if (recv == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can scatter in place");
      recv = static_cast<char*>(const_cast<void*>(or_nothing(send))) +
             static_cast<std::size_t>(root) * bytes;
    }
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    return finish(comm, call,
                  comm->communicator->scatter(
                      shape_for(Operation::kScatter, dtype, count, root), or_nothing(send),
                      is_root ? even_blocks(size, bytes) : std::vector<Block>(), or_nothing(recv),
                      bytes, options_of(call)));
  });
}

int ivy_scatter_v(ivy_comm* comm, const void* send, const size_t* counts,
                  const size_t* displacements, void* recv, size_t recv_count, int dtype, int root,
                  const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(recv_count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    std::vector<Block> blocks;
    if (is_root) {
      if (counts == nullptr) return invalid("counts is NULL at the root");
      blocks = uneven_blocks(comm->communicator->size(), counts, displacements, size_of(dtype));
    }
    if (recv == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can scatter in place");
      recv = static_cast<char*>(const_cast<void*>(or_nothing(send))) +
             blocks[static_cast<std::size_t>(root)].offset;
      recv_count = counts[root];
    }
    IVY_CHECKED(check_buffer(recv, recv_count, "recv"));
    return finish(comm, call,
                  comm->communicator->scatter(shape_for(Operation::kScatterV, dtype, 0, root),
                                              or_nothing(send), std::move(blocks), or_nothing(recv),
                                              recv_count * size_of(dtype), options_of(call)));
  });
}

int ivy_all_to_all(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    const std::vector<Block> blocks = even_blocks(size, count * size_of(dtype));
    return finish(comm, call,
                  comm->communicator->all_to_all(shape_for(Operation::kAllToAll, dtype, count),
                                                 or_nothing(send), blocks, or_nothing(recv), blocks,
                                                 options_of(call)));
  });
}

int ivy_all_to_all_v(ivy_comm* comm, const void* send, const size_t* send_counts,
                     const size_t* send_displacements, void* recv, const size_t* recv_counts,
                     const size_t* recv_displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    if (send == IVY_IN_PLACE) return invalid("all_to_all_v cannot work in place");
    if (send_counts == nullptr || recv_counts == nullptr) return invalid("a counts array is NULL");
    const std::int32_t size = comm->communicator->size();
    return finish(
        comm, call,
        comm->communicator->all_to_all(
            shape_for(Operation::kAllToAllV, dtype, 0), or_nothing(send),
            uneven_blocks(size, send_counts, send_displacements, size_of(dtype)), or_nothing(recv),
            uneven_blocks(size, recv_counts, recv_displacements, size_of(dtype)),
            options_of(call)));
  });
}

int ivy_scan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_count(count, dtype, 1));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    return finish(comm, call,
                  comm->communicator->scan(or_nothing(send), or_nothing(recv), count,
                                           static_cast<Dtype>(dtype), static_cast<ReduceOp>(op),
                                           options_of(call)));
  });
}

int ivy_all_reduce_coalesced(ivy_comm* comm, size_t parts, const void* const* send,
                             void* const* recv, const size_t* counts, int dtype, int op,
                             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    if (parts != 0 && (recv == nullptr || counts == nullptr || send == nullptr)) {
      return invalid("an array is NULL");
    }
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<std::size_t> list;
    for (std::size_t part = 0; part < parts; ++part) {
      IVY_CHECKED(check_count(counts[part], dtype, parts));
      const void* const input = send[part] == IVY_IN_PLACE ? recv[part] : send[part];
      IVY_CHECKED(check_buffer(input, counts[part], "send"));
      IVY_CHECKED(check_buffer(recv[part], counts[part], "recv"));
      from.push_back(input);
      to.push_back(recv[part]);
      list.push_back(counts[part]);
    }
    return finish(comm, call,
                  comm->communicator->all_reduce_coalesced(
                      std::move(from), std::move(to), std::move(list), static_cast<Dtype>(dtype),
                      static_cast<ReduceOp>(op), options_of(call)));
  });
}

// ---- Messages ----------------------------------------------------------------------------------

namespace {

constexpr int kTagMax = 1 << 30;

int check_peer(const ivy_comm* comm, int rank, const char* name) {
  if (rank >= 0 && rank < comm->communicator->size()) return IVY_OK;
  return invalid(std::string(name) + " " + std::to_string(rank) + " is no rank of communicator " +
                 comm->communicator->name());
}

int check_tag(int tag) {
  if (tag >= 0 && tag <= kTagMax) return IVY_OK;
  return invalid("tag " + std::to_string(tag) + " is not between 0 and " + std::to_string(kTagMax));
}

std::shared_ptr<MessageRequest> request_for(bool is_send, void* buffer, std::size_t count,
                                            int dtype, int peer, int tag) {
  auto request = std::make_shared<MessageRequest>();
  request->is_send = is_send;
  request->peer = peer;
  request->tag = tag;
  request->dtype = static_cast<Dtype>(dtype);
  request->data = or_nothing(buffer);
  request->bytes = count * size_of(dtype);
  return request;
}

int check_send(const ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag) {
  IVY_CHECKED(check_type(dtype));
  IVY_CHECKED(check_count(count, dtype, 1));
  IVY_CHECKED(check_peer(comm, to, "to"));
  IVY_CHECKED(check_tag(tag));
  return check_buffer(buffer, count, "buffer");
}

int check_recv(const ivy_comm* comm, const void* buffer, size_t count, int dtype, int from,
               int tag) {
  IVY_CHECKED(check_type(dtype));
  IVY_CHECKED(check_count(count, dtype, 1));
  if (from != IVY_ANY_SOURCE) IVY_CHECKED(check_peer(comm, from, "from"));
  if (tag != IVY_ANY_TAG) IVY_CHECKED(check_tag(tag));
  return check_buffer(buffer, count, "buffer");
}

int give_status(const MessageStatus& status, ivy_message* message) {
  if (message == nullptr) return IVY_OK;
  if (message->struct_bytes < sizeof(ivy_message)) {
    return invalid("ivy_message.struct_bytes is not set to sizeof(ivy_message)");
  }
  message->source = status.source;
  message->tag = status.tag;
  message->bytes = status.bytes;
  return IVY_OK;
}

int run_message(ivy_comm* comm, const std::shared_ptr<MessageRequest>& request,
                ivy_message* message, const ivy_call* call) {
  if (call != nullptr && call->work != nullptr) {
    comm->communicator->post_message(request);
    *call->work = new ivy_work{request->work, request, comm->communicator.get()};
    return IVY_OK;
  }
  const Outcome outcome = comm->communicator->exchange_messages({request}, options_of(call));
  if (outcome.code != IVY_OK) return fail(outcome.failure);
  return give_status(request->status, message);
}

}  // namespace

int ivy_send(ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_send(comm, buffer, count, dtype, to, tag));
    return run_message(comm, request_for(true, const_cast<void*>(buffer), count, dtype, to, tag),
                       nullptr, call);
  });
}

int ivy_recv(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
             ivy_message* message, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_recv(comm, buffer, count, dtype, from, tag));
    return run_message(comm, request_for(false, buffer, count, dtype, from, tag), message, call);
  });
}

int ivy_sendrecv(ivy_comm* comm, const void* send, size_t send_count, int to, int send_tag,
                 void* recv, size_t recv_count, int from, int recv_tag, int dtype,
                 ivy_message* message, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_send(comm, send, send_count, dtype, to, send_tag));
    IVY_CHECKED(check_recv(comm, recv, recv_count, dtype, from, recv_tag));
    if (call != nullptr && call->work != nullptr) {
      return invalid("sendrecv waits; use ivy_send and ivy_recv with call.work");
    }
    const auto sending =
        request_for(true, const_cast<void*>(send), send_count, dtype, to, send_tag);
    const auto receiving = request_for(false, recv, recv_count, dtype, from, recv_tag);
    const Outcome outcome =
        comm->communicator->exchange_messages({sending, receiving}, options_of(call));
    if (outcome.code != IVY_OK) return fail(outcome.failure);
    return give_status(receiving->status, message);
  });
}

int ivy_work_message(ivy_work* work, ivy_message* message) {
  return guarded([&] {
    if (work == nullptr || message == nullptr) return invalid("work or message is NULL");
    const std::optional<Outcome> outcome = work->work->test();
    if (work->message == nullptr || work->message->is_send || !outcome || outcome->code != IVY_OK) {
      return invalid("this is no receive that has ended well");
    }
    return give_status(work->message->status, message);
  });
}

// ---- Work -------------------------------------------------------------------------------------

int ivy_work_wait(ivy_work* work, int64_t timeout_ms) {
  return guarded([&] {
    if (work == nullptr) return invalid("work is NULL");
    const std::optional<Outcome> outcome = work->work->wait(std::chrono::milliseconds(timeout_ms));
    if (!outcome) return fail(IVY_DEADLINE_EXCEEDED, "the operation still runs");
    return outcome->code == IVY_OK ? static_cast<int>(IVY_OK) : fail(outcome->failure);
  });
}

int ivy_work_test(ivy_work* work, int* done) {
  return guarded([&] {
    if (work == nullptr || done == nullptr) return invalid("work or done is NULL");
    const std::optional<Outcome> outcome = work->work->test();
    *done = outcome ? 1 : 0;
    if (!outcome || outcome->code == IVY_OK) return static_cast<int>(IVY_OK);
    return fail(outcome->failure);
  });
}

int ivy_work_abort(ivy_work* work) {
  return guarded([&] {
    if (work == nullptr) return invalid("work is NULL");
    if (!work->work->test()) work->communicator->abort("an operation was aborted");
    return static_cast<int>(IVY_OK);
  });
}

int ivy_work_timing(ivy_work* work, double* queued, double* ran) {
  return guarded([&] {
    if (work == nullptr || queued == nullptr || ran == nullptr) return invalid("a pointer is NULL");
    const WorkTiming timing = work->work->timing();
    *queued = timing.queued.count();
    *ran = timing.ran.count();
    return static_cast<int>(IVY_OK);
  });
}

int ivy_work_free(ivy_work* work) {
  return guarded([&] {
    if (work == nullptr) return static_cast<int>(IVY_OK);
    work->work->wait(std::chrono::milliseconds(-1));
    delete work;
    return static_cast<int>(IVY_OK);
  });
}

// ---- The job's store ---------------------------------------------------------------------------

namespace {

int check_store(const ivy_comm* comm) {
  IVY_CHECKED(check_comm(comm));
  if (comm->communicator->job().store() != nullptr) return IVY_OK;
  return fail(IVY_FAILED_PRECONDITION, "a world of one has no store");
}

}  // namespace

int ivy_store_set(ivy_comm* comm, const char* key, const void* value, size_t value_bytes) {
  return guarded([&] {
    IVY_CHECKED(check_store(comm));
    if (key == nullptr || (value == nullptr && value_bytes != 0))
      return invalid("key or value is NULL");
    const Result<void> done = comm->communicator->job().store()->set(
        key, std::string_view(static_cast<const char*>(value), value_bytes));
    return done.ok() ? static_cast<int>(IVY_OK) : fail(done.error());
  });
}

int ivy_store_get(ivy_comm* comm, const char* key, int64_t timeout_ms, void** value,
                  size_t* value_bytes) {
  return guarded([&] {
    IVY_CHECKED(check_store(comm));
    if (key == nullptr || value == nullptr || value_bytes == nullptr)
      return invalid("a pointer is NULL");
    const auto timeout =
        std::chrono::duration_cast<std::chrono::milliseconds>(timeout_of(timeout_ms));
    const Result<std::string> found = comm->communicator->job().store()->wait_get(key, timeout);
    if (!found.ok()) return fail(found.error());
    *value = std::malloc(std::max<std::size_t>(1, found->size()));
    if (*value == nullptr) throw std::bad_alloc();
    std::memcpy(*value, found->data(), found->size());
    *value_bytes = found->size();
    return static_cast<int>(IVY_OK);
  });
}

int ivy_store_add(ivy_comm* comm, const char* key, int64_t delta, int64_t* value) {
  return guarded([&] {
    IVY_CHECKED(check_store(comm));
    if (key == nullptr || value == nullptr) return invalid("a pointer is NULL");
    const Result<std::int64_t> sum = comm->communicator->job().store()->add(key, delta);
    if (!sum.ok()) return fail(sum.error());
    *value = *sum;
    return static_cast<int>(IVY_OK);
  });
}

int ivy_store_remove(ivy_comm* comm, const char* key, int* existed) {
  return guarded([&] {
    IVY_CHECKED(check_store(comm));
    if (key == nullptr) return invalid("key is NULL");
    const Result<bool> removed = comm->communicator->job().store()->remove(key);
    if (!removed.ok()) return fail(removed.error());
    if (existed != nullptr) *existed = *removed ? 1 : 0;
    return static_cast<int>(IVY_OK);
  });
}

void ivy_bytes_free(void* value) { std::free(value); }

}  // extern "C"
