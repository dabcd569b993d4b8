// SPDX-License-Identifier: Apache-2.0
// Failing allocations of memory and threads. Each is an error of the call, or of the communicator
// on every rank. The process must not exit, and no operation may continue with memory that was
// given back.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/comm/world.h"
#include "tests/support/real_cgroup.h"
#include "tests/support/resource_limit.h"

namespace ivy::comm::test {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kMayLimitMemory = false;  // The sanitizer's allocator exits the process.
#else
constexpr bool kMayLimitMemory = true;
#endif

// Returns a limit of RLIMIT_AS that leaves this process `more` bytes beyond what it has.
rlim_t address_space_with(std::size_t more) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more;
}

void drop_privileges() {
  constexpr uid_t kNobody = 65'534;
  if (geteuid() == 0) {
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
  }
}

constexpr std::size_t kLarge = 16U << 20;  // Elements.
constexpr std::size_t kLittle = 32U << 20;

// In place, where nearly all of rank 1's result must first be stored elsewhere.
int reduce_large(ivy_comm* comm, std::vector<float>& values, const ivy_call* call) {
  const std::size_t counts[] = {1, values.size() - 1};
  return ivy_reduce_scatter_v(comm, IVY_IN_PLACE, values.data(), counts, IVY_F32, IVY_SUM, call);
}

void expect_reported(int code, const char* rank) {
  const std::string text = ivy_last_error();
  EXPECT_EQ(code, IVY_RESOURCE_EXHAUSTED) << text;
  EXPECT_NE(text.find(rank), std::string::npos) << text;
  EXPECT_NE(text.find("memory"), std::string::npos) << text;
}

// Beyond the limit of a cgroup, the kernel would kill the rank.
TEST(RealExhaustionTest, RejectsMemoryBeyondTheLimitOfACgroup) {
  ivy::test::RealCgroup cgroup("memory");
  if (!cgroup.why_not().empty() || !cgroup.limit_memory(std::size_t{256} << 20)) {
    GTEST_SKIP() << cgroup.why_not();
  }
  expect_ok(run_world(one_host(2), [&](int rank) {
    if (rank == 1) {
      ASSERT_TRUE(cgroup.enter());
    }
    const World world(seconds(20));
    ASSERT_TRUE(world);
    void* memory = nullptr;
    if (rank == 1) {
      expect_reported(ivy_mem_alloc(world, std::size_t{512} << 20, &memory), "536870912 bytes");
    }
    EXPECT_EQ(ivy_mem_alloc(world, std::size_t{16} << 20, &memory), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK);
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

class ExhaustionTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ExhaustionTest, ::testing::Values(one_host(2), host_each(2)),
                         [](const ::testing::TestParamInfo<Hosts>& world) {
                           return hosts_text(world.param);
                         });

TEST_P(ExhaustionTest, ReportsAnOperationWithoutMemoryOnEveryRank) {
  if (!kMayLimitMemory) GTEST_SKIP() << "a sanitizer's allocator does not fail";
  for (const bool is_async : {false, true}) {
    SCOPED_TRACE(is_async ? "async" : "blocking");
    expect_ok(run_world(GetParam(), [&](int rank) {
      const World world(seconds(20));
      ASSERT_TRUE(world);
      std::vector<float> values(2 * kLarge, 1);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      ivy_work* work = nullptr;
      const ivy_call call = call_for_work(&work);
      std::optional<ivy::test::ResourceLimit> limit;
      if (rank == 1) limit.emplace(RLIMIT_AS, address_space_with(kLittle));
      int code = reduce_large(world, values, is_async ? &call : nullptr);
      if (is_async) {
        ASSERT_EQ(code, IVY_OK) << ivy_last_error();
        code = ivy_work_wait(work, IVY_FOREVER);
      }
      expect_reported(code, "rank 1");
      limit.reset();
      if (is_async) {
        EXPECT_EQ(ivy_work_free(work), IVY_OK);
      }
      expect_reported(ivy_barrier(world, nullptr), "rank 1");
    }));
  }
}

// The message thread stores messages that no receive has requested yet.
TEST_P(ExhaustionTest, ReportsAMessageWithoutMemoryOnEveryRank) {
  if (!kMayLimitMemory) GTEST_SKIP() << "a sanitizer's allocator does not fail";
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world(seconds(20));
    ASSERT_TRUE(world);
    std::vector<float> values(2 * kLarge, 1);
    float value = 0;
    ivy_work* work = nullptr;
    const ivy_call call = call_for_work(&work);
    std::optional<ivy::test::ResourceLimit> limit;
    if (rank == 0) {
      ASSERT_EQ(ivy_recv(world, &value, 1, IVY_F32, 1, 7, nullptr, &call), IVY_OK);
      limit.emplace(RLIMIT_AS, address_space_with(kLittle));
    }
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 1) {
      expect_reported(ivy_send(world, values.data(), values.size(), IVY_F32, 0, 1, nullptr),
                      "rank 0");
      return;
    }
    expect_reported(ivy_work_wait(work, IVY_FOREVER), "rank 0");
    limit.reset();
    EXPECT_EQ(ivy_work_free(work), IVY_OK);
    expect_reported(ivy_barrier(world, nullptr), "rank 0");
  }));
}

// An operation that could not be started must not run later, when the caller owns its buffer again.
TEST_P(ExhaustionTest, DoesNotQueueAnOperationWithoutAThread) {
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world(seconds(20));
    ASSERT_TRUE(world);
    float value = 1;
    ivy_work* work = nullptr;
    const ivy_call call = call_for_work(&work);
    if (rank == 0) {
      drop_privileges();
      const ivy::test::ResourceLimit no_threads(RLIMIT_NPROC, 0);
      EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_SUM, &call),
                IVY_RESOURCE_EXHAUSTED);
      EXPECT_NE(std::string(ivy_last_error()).find("thread"), std::string::npos)
          << ivy_last_error();
      EXPECT_EQ(work, nullptr);
      sigset_t blocked;
      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
      EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
    }
    ASSERT_EQ(ivy_barrier(world, &call), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_work_wait(work, IVY_FOREVER), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_work_free(work), IVY_OK);
    EXPECT_EQ(value, 1);
  }));
}

TEST_P(ExhaustionTest, AReceiveWithoutAThreadTakesNoMessage) {
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world(seconds(20));
    ASSERT_TRUE(world);
    float value = 1;
    ivy_work* work = nullptr;
    const ivy_call call = call_for_work(&work);
    if (rank == 0) {
      drop_privileges();
      const ivy::test::ResourceLimit no_threads(RLIMIT_NPROC, 0);
      EXPECT_EQ(ivy_recv(world, &value, 1, IVY_F32, 1, 7, nullptr, &call), IVY_RESOURCE_EXHAUSTED);
      EXPECT_EQ(work, nullptr);
    }
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    float other = rank == 1 ? 5 : 0;
    const int code = rank == 1 ? ivy_send(world, &other, 1, IVY_F32, 0, 7, nullptr)
                               : ivy_recv(world, &other, 1, IVY_F32, 1, 7, nullptr, nullptr);
    EXPECT_EQ(code, IVY_OK) << ivy_last_error();
    EXPECT_EQ(other, 5);
    EXPECT_EQ(value, 1);
  }));
}

}  // namespace
}  // namespace ivy::comm::test
