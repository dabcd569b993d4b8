// SPDX-License-Identifier: Apache-2.0
// The caches that each rank detects, and the values that all ranks agree on.
#include "comm/contract/caches.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "comm/contract/processors.h"

namespace ivy::comm {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A directory with the kernel's cache files of every processor that this process may use.
class Machine {
 public:
  Machine() {
    char path[] = "/tmp/ivy-caches-XXXXXX";
    root_ = mkdtemp(path);
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void add(int index, int level, const std::string& type, const std::string& size,
           const std::string& sharers) {
    for (const std::uint32_t processor : own_processors()) {
      const std::string folder = root_ + "/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                                 "/cache/index" + std::to_string(index);
      std::filesystem::create_directories(folder);
      std::ofstream(folder + "/level") << level << "\n";
      std::ofstream(folder + "/type") << type << "\n";
      if (!size.empty()) std::ofstream(folder + "/size") << size << "\n";
      std::ofstream(folder + "/shared_cpu_list") << sharers << "\n";
    }
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

TEST(CachesTest, FindsTheLastLevel) {
  Machine machine;
  machine.add(0, 1, "Data", "48K", "0");
  machine.add(1, 1, "Instruction", "32K", "0");
  machine.add(2, 2, "Unified", "1024K", "0");
  machine.add(3, 3, "Unified", "32768K", "0-7,64-71");
  const Caches caches = own_caches(machine.root());
  EXPECT_EQ(caches.last_bytes, 32 * kMiB);
  EXPECT_EQ(caches.last_processors, 16U);
}

TEST(CachesTest, OmitsValuesThatTheKernelDoesNotReport) {
  EXPECT_EQ(own_caches("/nonexistent"), Caches());
  Machine machine;
  machine.add(0, 1, "Data", "48K", "0");
  EXPECT_EQ(own_caches(machine.root()), Caches());
  machine.add(1, 2, "Unified", "", "0-3");
  EXPECT_EQ(own_caches(machine.root()), Caches());
  machine.add(1, 2, "Unified", "2M", "");
  EXPECT_EQ(own_caches(machine.root()), Caches());
  machine.add(1, 2, "Unified", "2M", "0-3");
  EXPECT_EQ(own_caches(machine.root()).last_bytes, 2 * kMiB);
}

TEST(CachesTest, EncodesEveryFieldAsText) {
  for (const Caches& caches : {Caches{}, Caches{32 * kMiB, 8, true}, Caches{96 * kMiB, 2, false}}) {
    EXPECT_EQ(caches_from(caches_text(caches)), caches);
  }
  for (const char* const text :
       {"", "x", "1", "1,", "1,2", "1,2,", "1,2,nearby", "1,-2,near", ",,"}) {
    EXPECT_EQ(caches_from(text), Caches()) << text;
  }
}

TEST(CachesTest, UsesTheSmallestCacheOfAllRanks) {
  const Caches near = {32 * kMiB, 8, true};
  EXPECT_EQ(smallest_caches({near, near}), near);
  EXPECT_EQ(smallest_caches({near, {16 * kMiB, 16, false}}), (Caches{16 * kMiB, 8, false}));
  EXPECT_EQ(smallest_caches({near, {}}), Caches());
  EXPECT_EQ(smallest_caches({}), Caches());
}

TEST(CachesTest, CountsTheFewestLastLevelsThatHoldAllRanks) {
  const Caches caches = {32 * kMiB, 8, true};
  EXPECT_EQ(last_level_bytes(caches, 1), 32 * kMiB);
  EXPECT_EQ(last_level_bytes(caches, 8), 32 * kMiB);
  EXPECT_EQ(last_level_bytes(caches, 9), 64 * kMiB);
  EXPECT_EQ(last_level_bytes({}, 2), 0U);
  const Caches few = {32 * kMiB, 8, true, 16};
  EXPECT_EQ(last_level_bytes(few, 9), 64 * kMiB);
  EXPECT_EQ(last_level_bytes(few, 100), 64 * kMiB);
}

}  // namespace
}  // namespace ivy::comm
