// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the C interface: the opaque handles, the conversion of failures to codes
// and texts, and argument checks. No exception escapes these files.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/contract/ivycomm.h"
#include "comm/group/communicator.h"
#include "comm/group/world/job_member.h"

struct ivy_comm {
  // The world owns the job and lists all groups made from it.
  std::unique_ptr<ivy::comm::JobMember> job;
  std::unique_ptr<ivy::comm::Communicator> communicator;
  ivy_comm* world = nullptr;
  std::vector<ivy_comm*> groups;  // Only used by a world; guarded by `mutex` until it ends.
  std::mutex mutex;
  std::condition_variable group_freed;  // ivy_comm_free() has removed a group from `groups`.
  std::atomic<bool> is_ending{false};   // Only the thread that sets it ends the communicator.
  std::atomic<bool> is_in_repair{false};
};

struct ivy_work {
  std::shared_ptr<ivy::comm::Work> work;
  std::shared_ptr<ivy::comm::MessageRequest> message;  // Null for the work of a collective.
  ivy::comm::Communicator* communicator = nullptr;
};

namespace ivy::comm::c_interface {

// All four store the failure for this thread's ivy_last_error() and ivy_last_failure(), and return
// its code.
[[gnu::cold, gnu::noinline]] int fail(const Failure& failure);
[[gnu::cold, gnu::noinline]] int fail(int code, std::string text);
[[gnu::cold, gnu::noinline]] int fail(const Error& error);
[[gnu::cold, gnu::noinline]] int invalid(const std::string& text);
const std::string& last_text();
const Failure& last_failure();

// Runs a body that may throw (memory, threads) and returns its code.
template <class Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& problem) {
    return fail(failure_of(problem));
  }
}

std::chrono::nanoseconds timeout_of(std::int64_t timeout_ms);

// The memory of a handle is kept after its communicator has ended, so that using a stale pointer
// returns an error instead of causing undefined behaviour. The memory is reused only after
// kEndedHandlesKept more handles have ended.
inline constexpr std::size_t kEndedHandlesKept = 4096;
struct EndHandle {
  void operator()(ivy_comm* comm) const noexcept;
};
using Handle = std::unique_ptr<ivy_comm, EndHandle>;
Handle make_handle();

// A child of fork() has no communicators, because their threads, sockets and memberships belong to
// the parent. A child that was forked before the first world or after the last one may create its
// own.
void watch_forks();
void note_world_begins();
void note_world_ends();
int check_process();

int check_comm(const ivy_comm* comm);
[[gnu::cold, gnu::noinline]] int ended_error();  // For an ended communicator.
int check_call(const ivy_call* call);
int check_type(int dtype);
int check_reduction(int dtype, int op);
int check_root(const ivy_comm* comm, int root);
// Rejects NULL unless `count` is 0, and rejects IVY_IN_PLACE: callers that allow it pass the buffer
// that it stands for.
int check_buffer(const void* buffer, std::size_t count, const char* name);
// Returns the largest accepted number of elements: their size in bytes is a quarter of SIZE_MAX.
std::size_t max_elements(int dtype);
int check_count(std::size_t count, int dtype, std::size_t blocks);

// Also allocates the handle of an asynchronous call, which finish() returns, because nothing may
// fail once the operation is queued.
CallOptions options_of(const ivy_call* call);
ivy_work* give_work(ivy_work contents);  // Requires that options_of() was called for it.
// Stores the work for the caller, or returns the result.
int finish(ivy_comm* comm, const ivy_call* call, OperationResult called);

// Replaces the null pointer of an empty buffer with a valid one.
void* or_nothing(void* buffer);
const void* or_nothing(const void* buffer);

}  // namespace ivy::comm::c_interface

#define IVY_CHECKED(expression)                      \
  do {                                               \
    const int ivy_checked_ = (expression);           \
    if (ivy_checked_ != IVY_OK) return ivy_checked_; \
  } while (false)
