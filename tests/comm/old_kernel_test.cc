// SPDX-License-Identifier: Apache-2.0
// Kernels before 5.3 lack pidfd_open, and sandboxes may forbid calls that a kernel has; a filter
// simulates that. Deaths must still be detected, and no rank may sleep forever.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <string>
#include <vector>

#include "comm/join/bootstrap.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/os/listening_socket.h"
#include "rendezvous/server/server.h"
#include "tests/comm/world.h"
#include "tests/support/fork_as.h"

namespace ivy::comm::test {
namespace {

void forget(std::uint32_t system_call) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof rules / sizeof *rules, rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void forget_pidfd_open() {
  forget(SYS_pidfd_open);
  ASSERT_EQ(syscall(SYS_pidfd_open, getpid(), 0), -1);
  ASSERT_EQ(errno, ENOSYS);
}

TEST(OldKernelTest, NamesADeathOnThisHost) {
  const auto ends = run_world(one_host(3), [](int rank) {
    forget_pidfd_open();
    const World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 1) kill(getpid(), SIGKILL);
    const ivy_call call = call_with_timeout(scaled_time(seconds(5)));
    EXPECT_EQ(ivy_barrier(world, &call), IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
  });
  expect_ok(ends, 1);
}

// In place, at a size at which the kernel copies: one rank cannot read the other's memory.
TEST(OldKernelTest, AllReduceUsesSlotsIfOneRankCannotReadTheOther) {
  const auto ends = run_world(one_host(2), [](int rank) {
    if (rank == 1) forget(SYS_process_vm_readv);
    const World world;
    ASSERT_TRUE(world);
    std::vector<std::uint32_t> values(std::size_t{2} << 20);
    for (int round = 0; round < 3; ++round) {
      std::iota(values.begin(), values.end(), static_cast<std::uint32_t>(rank));
      ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, values.data(), values.size(), IVY_U32, IVY_SUM,
                               nullptr),
                IVY_OK)
          << ivy_last_error();
      for (std::uint32_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 2 * i + 1);
    }
  });
  expect_ok(ends);
}

// The first rank of the host cannot create anonymous memory, so all of them use a file.
TEST(OldKernelTest, MembersOfAGroupOpenANamedFile) {
  const auto ends = run_world(one_host(4), [](int) {
    const World world;
    ASSERT_TRUE(world);
    forget(SYS_memfd_create);
    const std::int32_t ranks[] = {0, 1, 2, 3};
    for (int round = 0; round < 20; ++round) {
      const std::string name = "named " + std::to_string(round);
      const ivy_members members = {sizeof members, name.c_str(), ranks, 0, 4};
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_group_of_members(world, &members, &group), IVY_OK) << ivy_last_error();
      int sum = 1;
      EXPECT_EQ(ivy_all_reduce(group, IVY_IN_PLACE, &sum, 1, IVY_I32, IVY_SUM, nullptr), IVY_OK)
          << ivy_last_error();
      EXPECT_EQ(sum, 4);
      EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
    }
  });
  expect_ok(ends);
}

// Rank 0's own store notices its exit by the end of a pipe instead.
TEST(OldKernelTest, RankZeroStartsAStoreThatExitsWithIt) {
  const int socket = listen_tcp("127.0.0.1", 0).value();
  const std::string address = store::address_of(socket);
  close(socket);
  IdentityRequest request;
  request.init_method = "tcp://" + address;
  request.rank = 0;
  request.world_size = 2;
  const Identity identity =
      identify(request, [](std::string_view) { return std::nullopt; }).value();
  Shared<std::atomic<bool>> has_met;
  const pid_t child = fork();
  if (child == 0) {
    forget_pidfd_open();
    const Result<Bootstrapped> met = bootstrap(identity, 0, scaled_time(seconds(20)));
    if (!met.ok()) _exit(1);
    *has_met = true;
    while (true) pause();
  }
  EXPECT_TRUE(ivy::test::eventually([&] { return has_met->load(); }, seconds(20)));
  EXPECT_TRUE(PeerConnections::is_listening(address));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(
      ivy::test::eventually([&] { return !PeerConnections::is_listening(address); }, seconds(5)));
}

std::int64_t monotonic_us() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1'000;
}

// Another process reuses the pid between two checks.
TEST(OldKernelTest, DetectsADeathDespiteAReusedPid) {
  constexpr int kNoSuchNumber = 2;
  for (const bool has_pidfd_open : {true, false}) {
    const pid_t watching = fork();
    if (watching == 0) {
      if (!has_pidfd_open) forget_pidfd_open();
      const pid_t rank = fork();
      while (rank == 0) pause();
      const auto detector = make_process_detector(
          {{0, getpid(), 0, "here", {}}, {1, rank, 0, "here", {}}}, 0, nullptr);
      bool is_right = !detector->check();
      kill(rank, SIGKILL);
      waitpid(rank, nullptr, 0);
      usleep(30'000);  // Start times are in clock ticks.
      const pid_t another = ivy::test::fork_as(rank);
      if (another < 0) _exit(kNoSuchNumber);
      const MaybeFailure found = detector->check();
      is_right = is_right && found && found->rank == 1;
      kill(another, SIGKILL);
      waitpid(another, nullptr, 0);
      _exit(is_right ? 0 : 1);
    }
    int status = 0;
    waitpid(watching, &status, 0);
    if (status == kNoSuchNumber << 8) GTEST_SKIP() << "this process cannot choose a pid";
    EXPECT_EQ(status, 0) << "pidfd_open: " << has_pidfd_open;
  }
}

// A sandbox may prevent one rank of a host from issuing memory barriers on other processors. Such a
// rank may miss a wake-up, so it polls five times a second.
TEST(OldKernelTest, ARankWithoutRemoteBarriersPollsWhileItSleeps) {
  constexpr int kTurns = 500;
  constexpr milliseconds kSlice{200};
  expect_ok(run_world(one_host(2), [&](int rank) {
    if (rank == 1) forget(SYS_membarrier);
    const World world;
    ASSERT_TRUE(world);
    std::int64_t longest_ms = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      // A missed wake-up occurs when the other rank stops spinning and goes to sleep.
      const std::int64_t begun = monotonic_us();
      const std::int64_t late = turn % 2 == rank ? 6 * turn % 1'300 : 0;
      while (monotonic_us() - begun < late) continue;
      const std::int64_t entered_ms = monotonic_ms();
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      longest_ms = std::max(longest_ms, monotonic_ms() - entered_ms);
    }
    EXPECT_LT(longest_ms, (kSlice + scaled_time(milliseconds(200))).count());
  }));
}

// A running rank must not be considered dead either.
TEST(OldKernelTest, WaitsForRunningRanks) {
  expect_ok(run_world(one_host(2), [](int rank) {
    forget_pidfd_open();
    const World world;
    ASSERT_TRUE(world);
    if (rank == 1) usleep(700'000);
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
