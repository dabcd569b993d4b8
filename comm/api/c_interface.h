// What the files of the C interface share: what its opaque handles are, how a failure becomes a
// code and a text, and the checks that calls begin with. No exception leaves those files.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "comm/contract/ivycomm.h"
#include "comm/group/communicator.h"
#include "comm/group/job.h"

struct ivy_comm {
  // The world owns the job and lists what was made from it.
  std::unique_ptr<ivy::comm::Job> job;
  std::unique_ptr<ivy::comm::Communicator> communicator;
  ivy_comm* world = nullptr;
  std::vector<ivy_comm*> groups;  // Of a world; guarded by `mutex`.
  std::mutex mutex;
  std::atomic<bool> is_ending{false};  // By the thread that sets it, and no other.
};

struct ivy_work {
  std::shared_ptr<ivy::comm::Work> work;
  std::shared_ptr<ivy::comm::MessageRequest> message;  // Null: a collective.
  ivy::comm::Communicator* communicator = nullptr;
};

namespace ivy::comm::c_interface {

// Each keeps what ivy_last_error() and ivy_last_failure() will say to this thread; returns the
// code.
int fail(const Failure& failure);
int fail(int code, std::string text);
int fail(const Error& error);
int invalid(const std::string& text);
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

// A handle's memory stays when its communicator has ended, so that who still has the pointer gets
// an error and not what lies there by then. It stands for another one only after kEndedHandlesKept
// further ones have ended.
inline constexpr std::size_t kEndedHandlesKept = 4096;
struct EndHandle {
  void operator()(ivy_comm* comm) const noexcept;
};
using Handle = std::unique_ptr<ivy_comm, EndHandle>;
Handle make_handle();

// A child of fork() has no communicators: its threads, sockets and seats are the parent's. Who
// forks before the first world or after the last has a child that may have its own.
void watch_forks();
void note_world_begins();
void note_world_ends();
int check_process();

int check_comm(const ivy_comm* comm);
int gone();  // What it says of a communicator that has ended.
int check_call(const ivy_call* call);
int check_type(int dtype);
int check_reduction(int dtype, int op);
int check_root(const ivy_comm* comm, int root);
// Of one that may stand for another (IVY_IN_PLACE): what it stands for.
int check_buffer(const void* buffer, std::size_t count, const char* name);
// Total bytes must be countable.
std::size_t most_elements(int dtype);
int check_count(std::size_t count, int dtype, std::size_t blocks);

// Of an asynchronous call it also makes the handle that finish() will give away: afterwards, with
// the operation queued, it could not fail any more.
CallOptions options_of(const ivy_call* call);
ivy_work* give_work(ivy_work contents);  // Of a call whose options were asked for.
// Gives the caller the work, or the outcome.
int finish(ivy_comm* comm, const ivy_call* call, Called called);

// Null pointers of empty buffers become something that may be pointed at.
void* or_nothing(void* buffer);
const void* or_nothing(const void* buffer);

}  // namespace ivy::comm::c_interface

#define IVY_CHECKED(expression)                      \
  do {                                               \
    const int ivy_checked_ = (expression);           \
    if (ivy_checked_ != IVY_OK) return ivy_checked_; \
  } while (false)
