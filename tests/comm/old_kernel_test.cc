// Kernels before 5.3 have no pidfd_open: a filter says so here. Deaths are seen all the same.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "comm/meeting.h"
#include "comm/transports/peer_listener.h"
#include "proto/listening_socket.h"
#include "rendezvous/server.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

void forget_pidfd_open() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof rules / sizeof *rules, rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
  ASSERT_EQ(syscall(SYS_pidfd_open, getpid(), 0), -1);
  ASSERT_EQ(errno, ENOSYS);
}

TEST(OldKernelTest, ADeathOnThisHostIsNamed) {
  const auto ends = run_world(one_host(3), [](int rank) {
    forget_pidfd_open();
    const World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 1) kill(getpid(), SIGKILL);
    const ivy_call call = call_with_timeout(stretched(seconds(5)));
    EXPECT_EQ(ivy_barrier(world, &call), IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
  });
  expect_well(ends, 1);
}

// Rank 0's own store sees the end of a pipe instead.
TEST(OldKernelTest, RankZeroStartsAStoreThatGoesWithIt) {
  const int socket = listen_tcp("127.0.0.1", 0).value();
  const std::string address = store::address_of(socket);
  close(socket);
  IdentityRequest request;
  request.init_method = "tcp://" + address;
  request.rank = 0;
  request.world_size = 2;
  const Identity who = identify(request, [](std::string_view) { return std::nullopt; }).value();
  Shared<std::atomic<bool>> has_met;
  const pid_t child = fork();
  if (child == 0) {
    forget_pidfd_open();
    const Result<Meet> met = meet(who, 0, stretched(seconds(20)));
    if (!met.ok()) _exit(1);
    *has_met = true;
    while (true) pause();
  }
  EXPECT_TRUE(ivy::test::eventually([&] { return has_met->load(); }, seconds(20)));
  EXPECT_TRUE(PeerListener::is_there(address));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(ivy::test::eventually([&] { return !PeerListener::is_there(address); }, seconds(5)));
}

// Nor is a rank that lives taken for dead.
TEST(OldKernelTest, RanksThatLiveAreWaitedFor) {
  expect_well(run_world(one_host(2), [](int rank) {
    forget_pidfd_open();
    const World world;
    ASSERT_TRUE(world);
    if (rank == 1) usleep(700'000);
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
