// SPDX-License-Identifier: Apache-2.0
// Files of cgroups: the cgroup of this process, from two texts of /proc, and the memory that its
// limits leave, from files of the test and from a controller of this machine.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/node/segments/shared_memory.h"
#include "proto/os/available_memory.h"
#include "proto/os/cgroup_files.h"
#include "tests/support/real_cgroup.h"

namespace ivy::test {
namespace {

struct LocationCase {
  const char* name;
  const char* mountinfo;
  const char* cgroup;
  const char* directory;  // nullptr: not visible.
};

class CgroupLocationTest : public testing::TestWithParam<LocationCase> {};

TEST_P(CgroupLocationTest, IsFoundByMountsAndOwnPath) {
  const LocationCase& each = GetParam();
  const auto directory = cgroup_v2_directory(each.mountinfo, each.cgroup);
  if (each.directory == nullptr) {
    EXPECT_FALSE(directory.has_value()) << *directory;
  } else {
    EXPECT_EQ(directory.value_or("nothing"), each.directory);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Places, CgroupLocationTest,
    testing::Values(
        LocationCase{
            "unified",
            "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"},
        LocationCase{"hybrid",
                     "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                     "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                     "4:memory:/batch\n0::/\n", "/sys/fs/cgroup/unified"},
        LocationCase{"part_of_the_hierarchy",
                     "5 1 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cg rw\n",
                     "0::/docker/ab/inner\n", "/sys/fs/cgroup/inner"},
        LocationCase{"exactly_the_part", "5 1 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cg rw\n",
                     "0::/docker/ab\n", "/sys/fs/cgroup"},
        LocationCase{"a_part_beside_ours", "5 1 0:26 /docker/a /sys/fs/cgroup ro - cgroup2 cg rw\n",
                     "0::/docker/ab\n", nullptr},
        LocationCase{"outside_the_namespace", "5 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                     "0::/../other\n", nullptr},
        LocationCase{"only_version_one", "5 1 0:26 / /cg rw - cgroup cgroup rw,memory\n",
                     "4:memory:/\n", nullptr},
        LocationCase{"escaped_path", "5 1 0:26 / /mnt/my\\040cgroups rw - cgroup2 none rw\n",
                     "0::/x\n", "/mnt/my cgroups/x"},
        LocationCase{"junk", "no dash\n1 2 - cgroup2\n\n", "::\n0\n", nullptr}),
    [](const auto& named) { return std::string(named.param.name); });

class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivy-cgroup-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    std::filesystem::create_directories(root_ + "/slice/job");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(root_ + "/" + file) << text;
  }
  std::uint64_t left() const { return memory_left_below_limits(root_ + "/slice/job"); }
  std::string root_;
};

TEST_F(MemoryLimitTest, IsAbsentWithoutALimit) {
  EXPECT_EQ(left(), ~std::uint64_t{0});
  write("slice/job/memory.max", "max\n");
  write("slice/job/memory.current", "4096\n");
  EXPECT_EQ(left(), ~std::uint64_t{0});
}

TEST_F(MemoryLimitTest, IsTheLowestOneAndCountsFilePagesAsFree) {
  write("slice/job/memory.max", "8000000\n");
  write("slice/job/memory.current", "1000000\n");
  EXPECT_EQ(left(), 7'000'000u);
  write("slice/memory.max", "5000000\n");
  write("slice/memory.current", "4500000\n");
  write("slice/memory.stat", "anon 1\ninactive_file 1000000\nactive_file 500000\nshmem 7\n");
  EXPECT_EQ(left(), 2'000'000u);
  write("slice/memory.current", "9000000\n");
  EXPECT_EQ(left(), 0u);
}

TEST_F(MemoryLimitTest, ReadsVersionOne) {
  write("slice/job/memory.limit_in_bytes", "9223372036854771712\n");
  write("slice/job/memory.usage_in_bytes", "1000000\n");
  write("slice/memory.limit_in_bytes", "3000000\n");
  write("slice/memory.usage_in_bytes", "1000000\n");
  write("slice/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n");
  EXPECT_EQ(left(), 2'200'000u);
}

// The kernel's own controller and a process that it limits.
TEST(RealMemoryCgroupTest, ReportsTheMemoryThatTheLimitLeaves) {
  constexpr std::uint64_t kLimit = 256u << 20;
  constexpr std::uint64_t kTaken = 64u << 20;
  RealCgroup cgroup("memory");
  if (!cgroup.why_not().empty() || !cgroup.limit_memory(kLimit)) GTEST_SKIP() << cgroup.why_not();
  EXPECT_EQ(cgroup.run([] {
    const std::uint64_t before = available_memory_bytes();
    if (before > kLimit || before < kLimit - (32u << 20)) return 1;
    const Result<int> memory = make_shared_memory("ivytest", kTaken);
    if (!memory.ok() || reserve_shared_memory(*memory, 0, kTaken) != 0) return 2;
    const std::uint64_t after = available_memory_bytes();
    // The memory that was taken is missing, within the size of the batches that the kernel counts
    // in.
    return after + kTaken <= before + (8u << 20) && after + kTaken + (8u << 20) >= before ? 0 : 3;
  }),
            0);
}

TEST(MemoryCgroupTest, IsFoundByItsController) {
  const char* mountinfo =
      "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
  EXPECT_EQ(cgroup_v1_directory(mountinfo, "3:cpuset:/c\n4:memory:/job/7\n0::/\n", "memory"),
            "/sys/fs/cgroup/memory/job/7");
  EXPECT_EQ(cgroup_v1_directory(mountinfo, "3:cpuset:/c\n0::/\n", "memory"), std::nullopt);
}

TEST(CgroupCounterTest, ReadsOneKeyOfAFile) {
  EXPECT_GE(read_cgroup_counter("/proc/vmstat", "oom_kill").value_or(-1), 0);
  EXPECT_EQ(read_cgroup_counter("/proc/vmstat", "oom"), std::nullopt);
  EXPECT_EQ(read_cgroup_counter("/no/such/file", "oom_kill"), std::nullopt);
}

}  // namespace
}  // namespace ivy::test
