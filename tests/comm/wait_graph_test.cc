// SPDX-License-Identifier: Apache-2.0
// The blamed rank of a timeout, derived from the records of all ranks; and whether each rank has
// its own processor.
#include "comm/join/wait_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "comm/contract/processors.h"
#include "tests/support/real_cgroup.h"

namespace ivy::comm {
namespace {

using Records = std::map<std::int32_t, WaitRecord>;

WaitRecord waits_for(std::int32_t rank, std::uint64_t sequence = 5, std::uint32_t beat = 1) {
  WaitRecord record;
  record.entered.sequence = sequence;
  record.waits_for = rank;
  record.beat = beat;
  return record;
}

WaitRecord sees(std::int32_t waited_for, std::int32_t culprit, const std::string& because) {
  WaitRecord record = waits_for(waited_for);
  record.culprit = culprit;
  std::copy(because.begin(), because.end(), record.because);
  return record;
}

FindRecord in(const Records& records) {
  return [&records](std::int32_t rank) -> std::optional<WaitRecord> {
    const auto found = records.find(rank);
    return found != records.end() ? std::optional(found->second) : std::nullopt;
  };
}

Suspect suspect_of(const Records& now, const Records& before = {}) {
  return find_suspect(0, 5, in(before), in(now));
}

TEST(FindSuspectTest, BlamesTheEndOfTheChain) {
  const Suspect suspect = suspect_of({{0, waits_for(2)}, {2, waits_for(3)}});
  EXPECT_EQ(suspect.rank, 3);
  EXPECT_FALSE(suspect.is_certain);
  EXPECT_NE(suspect.because.find("rank 3"), std::string::npos);
  // A record of an earlier operation does not count for this one.
  EXPECT_EQ(suspect_of({{0, waits_for(2)}, {2, waits_for(3)}, {3, waits_for(0, 4)}}).rank, 3);
}

TEST(FindSuspectTest, PrefersTheRankThatObservedTheFailure) {
  const Suspect suspect =
      suspect_of({{0, waits_for(2)}, {2, sees(4, 3, "rank 3 is stopped")}, {4, waits_for(0)}});
  EXPECT_EQ(suspect.rank, 3);
  EXPECT_TRUE(suspect.is_certain);
  EXPECT_EQ(suspect.because, "rank 3 is stopped");
}

TEST(FindSuspectTest, FollowsARankThatWaitsInAnEarlierOperation) {
  const Records before = {{0, waits_for(2)}, {2, waits_for(3, 4)}};
  const Records now = {{0, waits_for(2)}, {2, waits_for(3, 4, 2)}};
  const Suspect held_up = suspect_of(now, before);
  EXPECT_EQ(held_up.rank, 3);
  EXPECT_FALSE(held_up.is_certain);
  EXPECT_NE(held_up.because.find("rank 2 still waits in operation 4, where rank 3 is not waiting"),
            std::string::npos)
      << held_up.because;
  // Its wait there has timed out, so this is its last record.
  Records over = before;
  over[2].is_over = 1;
  EXPECT_EQ(suspect_of(over, over).rank, 3);
  // Its heartbeat is unchanged: it no longer waits there, or it is stopped itself.
  EXPECT_EQ(suspect_of(before, before).rank, 2);
  // A rank that observed the failure there is preferred, and is certain once its heartbeat changes.
  Records is_visible = now;
  is_visible[2] = sees(3, 6, "rank 6 is stopped");
  is_visible[2].entered.sequence = 4;
  EXPECT_EQ(suspect_of(is_visible).rank, 6);
  EXPECT_FALSE(suspect_of(is_visible).is_certain);
  is_visible[2].beat = 2;
  EXPECT_EQ(suspect_of(is_visible, before).rank, 6);
  EXPECT_TRUE(suspect_of(is_visible, before).is_certain);
  // Ranks on the same host see that rank 2 is absent; rank 2's own record gives the reason.
  Records absent = now;
  absent[0] = sees(2, 2, "rank 2 did not enter it");
  absent[0].is_absent = 1;
  EXPECT_EQ(suspect_of(absent, before).rank, 3);
  EXPECT_EQ(suspect_of({{0, absent[0]}}, before).because, "rank 2 did not enter it");
  EXPECT_TRUE(suspect_of({{0, absent[0]}}).is_certain);
  // Rank 2 waits for rank 0, which has already finished that operation: only rank 2 is late.
  EXPECT_EQ(suspect_of({{0, waits_for(2)}, {2, waits_for(0, 4, 2)}}, before).rank, 2);
}

TEST(FindSuspectTest, BlamesTheSilentRankOfARing) {
  const Records before = {{0, waits_for(1)}, {1, waits_for(2)}, {2, waits_for(0)}};
  const Records now = {{0, waits_for(1, 5, 2)}, {1, waits_for(2, 5, 2)}, {2, waits_for(0, 5, 1)}};
  EXPECT_EQ(suspect_of(now, before).rank, 2);
  // Its wait has timed out too, so its heartbeat no longer changes.
  Records over = now;
  over[2].is_over = 1;
  EXPECT_EQ(suspect_of(over, before).rank, -1);
}

TEST(FindSuspectTest, FindsNoSuspectInARingOfLiveRanks) {
  const Records now = {{0, waits_for(1)}, {1, waits_for(0)}};
  EXPECT_EQ(suspect_of(now).rank, -1);
  // A rank that is in a later operation is not to blame.
  EXPECT_EQ(suspect_of({{0, waits_for(1)}, {1, waits_for(7, 6)}}).rank, -1);
}

TEST(EnteredOperationsTest, FindsTheFirstDifferenceThatBothKnow) {
  EnteredOperations one;
  EnteredOperations other;
  for (std::uint64_t number = 1; number <= 20; ++number) {
    one.enter(number, Fingerprint{{number, 0}});
    other.enter(number, Fingerprint{{number == 15 ? 99 : number, 0}});
  }
  EXPECT_EQ(first_difference(one, other), 15U);
  EXPECT_NE(one.hash, other.hash);
  other = one;
  other.enter(21, Fingerprint{{1, 1}});
  EXPECT_FALSE(first_difference(one, other));
  EXPECT_TRUE(one.has(13));
  EXPECT_FALSE(one.has(12));
  EXPECT_FALSE(one.has(21));
}

TEST(ProcessorsTest, SurviveARoundTripAsText) {
  for (const char* const text : {"", "0", "0-3", "0-3,8", "1,3,5-6"}) {
    EXPECT_EQ(core_list_text(parse_core_list(text)), text);
  }
  for (const char* const text : {"x", "0-", "1,,2", "9999999", "-1"}) {
    EXPECT_TRUE(parse_core_list(text).empty()) << text;
  }
  EXPECT_FALSE(own_processors().empty());
}

TEST(ProcessorsTest, RequiresAProcessorForEveryRank) {
  EXPECT_TRUE(have_processor_each({{0, 1}, {0, 1}}));
  EXPECT_FALSE(have_processor_each({{0, 1}, {0, 1}, {0, 1}}));
  // Each bound to one core, first different cores, then the same one.
  EXPECT_TRUE(have_processor_each({{0}, {1}}));
  EXPECT_FALSE(have_processor_each({{0}, {0}}));
  // Possible only if the first rank leaves core 0 to the second.
  EXPECT_TRUE(have_processor_each({{0, 1}, {0}, {1, 2}}));
  EXPECT_FALSE(have_processor_each({{0, 1}, {0}, {1}}));
  EXPECT_FALSE(have_processor_each({{0}, {}}));
}

TEST(ProcessorsTest, IsOverloadedWithMoreThanTwoRanksPerProcessor) {
  EXPECT_FALSE(are_overloaded(std::vector<CoreList>{{0, 1}, {0, 1}, {0, 1}, {0, 1}}));
  EXPECT_TRUE(are_overloaded(std::vector<CoreList>{{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}}));
  EXPECT_TRUE(are_overloaded(std::vector<CoreList>{{0}, {0}, {0}}));
  // No processors are known.
  EXPECT_FALSE(are_overloaded(std::vector<CoreList>{{}, {}, {}}));
}

// ---- Quotas ------------------------------------------------------------------------------------

class QuotaTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::vector<double> processors() const {
    std::vector<double> found;
    for (const Quota& quota : own_quotas(root_)) found.push_back(quota.processors);
    return found;
  }
  ~QuotaTest() override { std::filesystem::remove_all(root_); }

  std::string root_ = [] {
    char name[] = "/tmp/ivy-comm-test-XXXXXX";
    return std::string(mkdtemp(name));
  }();
};

TEST_F(QuotaTest, ReadsVersionTwoOfAllParentGroups) {
  write("/proc/self/mountinfo",
        "22 20 0:21 / /proc rw - proc proc rw\n"
        "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  write("/proc/self/cgroup", "0::/pods/one/rank\n");
  write("/sys/fs/cgroup/cpu.stat", "");
  EXPECT_TRUE(processors().empty());
  write("/sys/fs/cgroup/pods/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/pods/one/cpu.max", "30000 100000\n");
  write("/sys/fs/cgroup/pods/one/rank/cpu.max", "250000 100000\n");
  EXPECT_EQ(processors(), (std::vector<double>{2.5, 0.3}));
}

TEST_F(QuotaTest, ReadsVersionOneInAContainer) {
  // Only the container's own part is mounted.
  write("/proc/self/mountinfo",
        "40 30 0:33 /docker/4711 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "41 30 0:34 /docker/4711 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "9:memory:/docker/4711\n4:cpu,cpuacct:/docker/4711/a\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors(), std::vector<double>{2.0});
}

// Uses the kernel's real controller.
TEST(RealQuotaTest, ReadsThisMachine) {
  ivy::test::RealCgroup cgroup("cpu");
  if (!cgroup.why_not().empty() || !cgroup.limit_processor(30'000)) {
    GTEST_SKIP() << cgroup.why_not();
  }
  EXPECT_EQ(cgroup.run([] {
    const Quotas quotas = own_quotas();
    const auto is_ours = [](const Quota& quota) { return quota.processors == 0.3; };
    if (std::none_of(quotas.begin(), quotas.end(), is_ours)) return 1;
    return have_quota_each(std::vector<Quotas>{quotas}) ? 2 : 0;
  }),
            0);
}

TEST(QuotasTest, DividesAmongTheRanksOfAGroup) {
  const Quotas two = {{"25:1", 2}};
  const Quotas half = {{"25:2", 0.5}, {"25:1", 2}};
  EXPECT_TRUE(have_quota_each(std::vector<Quotas>{{}, {}, {}, {}}));
  EXPECT_TRUE(have_quota_each({two, two}));
  EXPECT_FALSE(have_quota_each({two, two, two}));
  EXPECT_FALSE(have_quota_each({half}));
  EXPECT_TRUE(have_quota_each({two, {{"25:3", 2}}, two, {{"25:3", 2}}}));
  EXPECT_FALSE(are_overloaded(std::vector<Quotas>{half, two, two, two}));
  EXPECT_TRUE(are_overloaded(std::vector<Quotas>{half, half}));
  EXPECT_TRUE(are_overloaded(std::vector<Quotas>{two, two, two, two, two}));
  for (const Quotas& quotas : {Quotas(), two, half}) {
    EXPECT_EQ(quotas_from(quotas_text(quotas)), quotas);
  }
  for (const char* const text : {"x", "1:2=", "1:2=0", "1:2=-1", "=3", "1:2=1x"}) {
    EXPECT_TRUE(quotas_from(text).empty()) << text;
  }
}

// In most European locales printf() writes "0,500", and a comma separates groups in the text.
TEST(QuotasTest, FormatsTheSameInEveryLocale) {
  char directory[] = "/tmp/ivy-comm-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string command =
      "localedef -i de_DE -f UTF-8 " + std::string(directory) + "/de_DE.UTF-8 2> /dev/null";
  const bool is_made = std::system(command.c_str()) == 0;
  setenv("LOCPATH", directory, 1);
#ifdef __SANITIZE_ADDRESS__
  __lsan_disable();  // The C library never frees its copy of LOCPATH.
#endif
  const locale_t german = is_made ? newlocale(LC_NUMERIC_MASK, "de_DE.UTF-8", nullptr) : nullptr;
#ifdef __SANITIZE_ADDRESS__
  __lsan_enable();
#endif
  unsetenv("LOCPATH");
  std::filesystem::remove_all(directory);
  if (german == nullptr) GTEST_SKIP() << "localedef cannot make de_DE.UTF-8";
  const locale_t before = uselocale(german);
  const std::string text = quotas_text({{"25:2", 0.5}, {"25:1", 2}});
  const Quotas read = quotas_from("25:2=0.500,25:1=2.000");
  uselocale(before);
  freelocale(german);
  EXPECT_EQ(text, "25:2=0.500,25:1=2.000");
  EXPECT_EQ(read, (Quotas{{"25:2", 0.5}, {"25:1", 2}}));
}

// ---- Rate of records --------------------------------------------------------------------------

class CountedRecords final : public WaitRecords {
 public:
  bool write(std::int32_t /*rank*/, const WaitRecord& /*record*/) override {
    ++written;
    return true;
  }
  std::optional<WaitRecord> read(std::int32_t /*rank*/) override { return std::nullopt; }
  bool is_broken() override { return false; }

  int written = 0;
};

TEST(WaitGraphTest, WritesFewerRecordsDuringALongWait) {
  EnteredOperations entered;
  CountedRecords records;
  WaitGraph wait_graph(entered, {0, 1}, records);
  LongWait wait;
  wait.sequence = 1;
  wait.waits_for = 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2'500);
  while (std::chrono::steady_clock::now() < end) {
    wait.waited = std::chrono::minutes(10);
    wait_graph.waits(wait);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(records.written, 1);
}

}  // namespace
}  // namespace ivy::comm
