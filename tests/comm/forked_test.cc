// SPDX-License-Identifier: Apache-2.0
// A child forked by a rank has a copy of every descriptor. The rank's death must still be noticed
// as soon as any other's. These worlds have no supervisor: ranks notice the end of connections.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

struct Board {
  std::atomic<pid_t> child{0};
  std::atomic<bool> is_reported{false};
};

// Forks a child like a data loader's, which survives its parent.
pid_t fork_sleeper() {
  const pid_t child = fork();
  if (child != 0) return child;
  for (int fd = 0; fd < 3; ++fd) close(fd);  // The test waits for the end of its output.
  alarm(60);
  while (true) pause();
}

void end_sleeper(Board& board) {
  EXPECT_TRUE(ivy::test::eventually([&] { return board.child.load() > 0; }, seconds(10)));
  if (board.child.load() > 0) kill(board.child.load(), SIGKILL);
}

struct Wait {
  const char* name;
  int (*call)(ivy_comm* comm, const ivy_call* call);
};

const Wait kWaits[] = {
    {"barrier", [](ivy_comm* comm, const ivy_call* call) { return ivy_barrier(comm, call); }},
    {"recv",
     [](ivy_comm* comm, const ivy_call* call) {
       float got = 0;
       return ivy_recv(comm, &got, 1, IVY_F32, 1, 7, nullptr, call);
     }},
};

// Opens connections of both kinds, which the child could keep open.
void connect_all(ivy_comm* world, int rank) {
  ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  float value = 1;
  if (rank == 0) {
    ASSERT_EQ(ivy_send(world, &value, 1, IVY_F32, 1, 0, nullptr), IVY_OK) << ivy_last_error();
    ASSERT_EQ(ivy_recv(world, &value, 1, IVY_F32, 1, 0, nullptr, nullptr), IVY_OK);
  } else {
    ASSERT_EQ(ivy_recv(world, &value, 1, IVY_F32, 0, 0, nullptr, nullptr), IVY_OK);
    ASSERT_EQ(ivy_send(world, &value, 1, IVY_F32, 0, 0, nullptr), IVY_OK) << ivy_last_error();
  }
}

TEST(ForkedChildTest, KeepsNoConnectionOfARankThatIsKilled) {
  for (const Wait& wait : kWaits) {
    SCOPED_TRACE(wait.name);
    Shared<Board> board;
    const auto ends = run_world(host_each(2), [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      connect_all(world, rank);
      if (rank == 1) {
        board->child = fork_sleeper();
        kill(getpid(), SIGKILL);
      }
      const ivy_call call = call_with_timeout(scaled_time(seconds(5)));
      EXPECT_EQ(wait.call(world, &call), IVY_UNAVAILABLE) << ivy_last_error();
      EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
      end_sleeper(*board);
    });
    expect_ok(ends, 1);
  }
}

// The same for the listening socket: a rank that was never dialled is checked by dialling it.
TEST(ForkedChildTest, KeepsNoListenerOfARankThatIsKilled) {
  Shared<Board> board;
  const auto ends = run_world(host_each(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 1) {
      board->child = fork_sleeper();
      kill(getpid(), SIGKILL);
    }
    EXPECT_TRUE(ivy::test::eventually([&] { return board->child.load() > 0; }, seconds(10)));
    usleep(100'000);
    const ivy_call call = call_with_timeout(scaled_time(seconds(5)));
    EXPECT_EQ(ivy_barrier(world, &call), IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
    end_sleeper(*board);
  });
  expect_ok(ends, 1);
}

// As documented, all calls of the child fail and change nothing. Its writes to registered memory
// are visible to the parent.
TEST(ForkedChildTest, HasNoWorldButSharesRegisteredMemory) {
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    constexpr std::size_t kCount = 100'000;
    void* memory = nullptr;
    ASSERT_EQ(ivy_mem_alloc(world, kCount * sizeof(float), &memory), IVY_OK) << ivy_last_error();
    auto* const floats = static_cast<float*>(memory);
    std::fill(floats, floats + kCount, 1.0F);
    const pid_t child = fork();
    if (child == 0) {
      ivy_comm* second = nullptr;
      const bool is_rejected = ivy_barrier(world, nullptr) == IVY_FAILED_PRECONDITION &&
                               ivy_all_reduce(world, IVY_IN_PLACE, floats, kCount, IVY_F32, IVY_SUM,
                                              nullptr) == IVY_FAILED_PRECONDITION &&
                               ivy_init(nullptr, &second) == IVY_FAILED_PRECONDITION &&
                               ivy_mem_free(memory) == IVY_FAILED_PRECONDITION;
      floats[7] = 5;
      _exit(is_rejected && floats[0] == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(floats[7], 5);
    floats[7] = 1;
    // The parent's world is unchanged.
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, floats, kCount, IVY_F32, IVY_SUM, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_TRUE(std::all_of(floats, floats + kCount, [](float one) { return one == 2; })) << rank;
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK);
  }));
}

// During init, the connection to the store closes.
TEST(ForkedChildTest, KeepsNoConnectionToTheStore) {
  Shared<Board> board;
  const auto ends = run_world(host_each(3), [&](int rank) {
    if (rank == 1) {
      std::thread([&] {
        usleep(500'000);
        board->child = fork_sleeper();
        kill(getpid(), SIGKILL);
      }).detach();
    }
    if (rank == 2) {  // The others wait for it.
      EXPECT_TRUE(ivy::test::eventually([&] { return board->is_reported.load(); }, seconds(20)));
      end_sleeper(*board);
      return;
    }
    ivy_options options = {};
    options.struct_bytes = sizeof options;
    options.rank = options.world_size = -1;
    options.timeout_ms = scaled_time(seconds(8)).count();
    ivy_comm* world = nullptr;
    EXPECT_EQ(ivy_init(&options, &world), IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
    board->is_reported = true;
  });
  expect_ok(ends, 1);
}

}  // namespace
}  // namespace ivy::comm::test
