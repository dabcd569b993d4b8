// SPDX-License-Identifier: Apache-2.0
// A world of ranks on this machine for one test: each rank is a process, forked while the test has
// only one thread, with the variables that ivyrun would set and a separate store. Hosts are
// simulated: ranks of different hosts share no memory and use TCP on loopback.
//
// The body runs in the rank's process. Its EXPECTs and its output are returned as that rank's
// output. All ranks are killed at a deadline. No process, descriptor or shared memory remains.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/contract/ivycomm.h"
#include "tests/support/eventually.h"

namespace ivy::comm::test {

using ivy::test::scaled_time;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks of each host, in rank order.
using Hosts = std::vector<int>;

inline Hosts one_host(int ranks) { return {ranks}; }
inline Hosts host_each(int ranks) { return Hosts(static_cast<std::size_t>(ranks), 1); }
int rank_count(const Hosts& hosts);
std::string hosts_text(const Hosts& hosts);  // "3_2_1"

struct RankEnd {
  int status = 0;  // As in waitpid().
  bool is_late = false;
  std::string output;

  bool is_ok() const { return !is_late && WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

struct WorldOptions {
  milliseconds deadline = seconds(60);
  // A rank that never finishes. It is killed when all others have finished.
  int stopped_rank = -1;
};

using RankBody = std::function<void(int rank)>;

std::vector<RankEnd> run_world(const Hosts& hosts, const RankBody& body,
                               const WorldOptions& options = {});
// Expects that every rank but `except` succeeded, and prints the output of those that did not.
void expect_ok(const std::vector<RankEnd>& ends, int except = -1);

// The world communicator in a rank's process, finalized at the end of the scope.
class World {
 public:
  explicit World(milliseconds timeout = seconds(60)) {
    ivy_options options = {};
    options.struct_bytes = sizeof options;
    options.rank = -1;
    options.world_size = -1;
    options.timeout_ms = scaled_time(timeout).count();
    EXPECT_EQ(ivy_init(&options, &comm_), IVY_OK) << ivy_last_error();
  }
  ~World() {
    if (comm_ == nullptr) return;
    EXPECT_EQ(ivy_finalize(comm_), IVY_OK) << ivy_last_error();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Finalizes before the end of the scope. Returns the code.
  int finalize() { return ivy_finalize(std::exchange(comm_, nullptr)); }

  explicit operator bool() const { return comm_ != nullptr; }
  operator ivy_comm*() const { return comm_; }

 private:
  ivy_comm* comm_ = nullptr;
};

inline ivy_call call_with_timeout(milliseconds timeout) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.timeout_ms = timeout.count();
  return call;
}

inline ivy_call call_for_work(ivy_work** work) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.work = work;
  return call;
}

inline ivy_failure last_failure() {
  ivy_failure failure = {};
  failure.struct_bytes = sizeof failure;
  ivy_last_failure(&failure);
  return failure;
}

inline std::int64_t monotonic_ms() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

// A value shared by all ranks and the test. Create it before run_world().
template <class T>
class Shared {
 public:
  Shared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    new (memory_) T();
  }
  ~Shared() { munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *static_cast<T*>(memory_); }
  T* operator->() const { return static_cast<T*>(memory_); }

 private:
  void* const memory_;
};

}  // namespace ivy::comm::test
