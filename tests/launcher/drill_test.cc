// SPDX-License-Identifier: Apache-2.0
// --drill: its grammar, the order and targets of its faults, and the attribution of verdicts.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "launcher/drill/drill_schedule.h"
#include "launcher/drill/fault_log.h"
#include "launcher/options/drill_rule.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using Kind = NamedFailure::Kind;
using Pick = DrillRule::Pick;
using Verdict = InjectedFault::Verdict;

constexpr std::int64_t kSecondNs = 1'000'000'000;

DrillRule rule_of(const std::string& text) {
  Result<DrillRule> rule = parse_drill(text);
  EXPECT_TRUE(rule.ok()) << rule.error().message;
  return rule.ok() ? *rule : DrillRule{};
}

std::string error_of(const std::string& text) {
  const Result<DrillRule> rule = parse_drill(text);
  return rule.ok() ? "accepted" : rule.error().message;
}

// Two hosts with two ranks each; ivyrun runs on the first one.
DrillWorld small_world() {
  DrillWorld world;
  world.hosts = {{0, "a1", true}, {1, "a2", false}};
  world.ranks = {{0, 0}, {1, 0}, {2, 1}, {3, 1}};
  return world;
}

TEST(DrillRuleTest, ReadsFaultsAndKeys) {
  const DrillRule rule =
      rule_of("kill,stop every=15s after=2s times=4 for=3s ranks=0,2-3 hosts=a[1-2] seed=7");
  EXPECT_EQ(rule.faults, (std::vector<Fault>{Fault::kKill, Fault::kStop}));
  EXPECT_EQ(rule.every, milliseconds(15'000));
  EXPECT_EQ(rule.after, milliseconds(2'000));
  EXPECT_EQ(rule.times, 4u);
  EXPECT_EQ(rule.lasts, milliseconds(3'000));
  EXPECT_EQ(rule.ranks, Pick::kListed);
  EXPECT_EQ(rule.listed_ranks, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(rule.listed_hosts, (std::vector<std::string>{"a1", "a2"}));
  EXPECT_EQ(rule.seed, 7u);
}

TEST(DrillRuleTest, StartsAfterOnePeriodByDefault) {
  EXPECT_EQ(rule_of("kill every=20s").after, milliseconds(20'000));
  EXPECT_EQ(rule_of("kill after=0 every=20s").after, milliseconds(0));
}

TEST(DrillRuleTest, NamesTheColumnOfAnError) {
  EXPECT_EQ(error_of("explode every=1s"), "column 1: \"explode\" is not a fault");
  EXPECT_EQ(error_of("kill,explode"), "column 6: \"explode\" is not a fault");
  EXPECT_EQ(error_of("kill evry=1s"), "column 6: \"evry\" is not a key of a drill");
  EXPECT_EQ(error_of("kill every=0"), "column 12: \"0\" is too short: at least 100 ms");
  EXPECT_EQ(error_of("kill ranks=0,x"), "column 14: \"x\" is not a rank or a range of ranks");
  EXPECT_EQ(error_of("kill seed=x"), "column 11: \"x\" is not a number");
  EXPECT_EQ(error_of("kill stop"), "column 6: \"stop\" is not KEY=VALUE");
  EXPECT_EQ(error_of("every=1s"), "column 1: a drill starts with its fault");
  EXPECT_EQ(error_of(""), "column 1: there is no fault");
  EXPECT_EQ(error_of("slow rate=10mb"), "column 11: \"10mb\" is not a rate");
  EXPECT_EQ(error_of("kill for="), "column 6: for= has no value");
}

TEST(DrillRuleTest, RequiresWhatAFaultNeeds) {
  EXPECT_EQ(error_of("full-disk"),
            "column 1: full-disk needs path=DIR, a directory on the file system to fill");
  EXPECT_EQ(error_of("slow"), "column 1: slow needs rate= or delay=");
  EXPECT_NE(error_of("cut ranks=1").find("column 11: ranks= is for faults of ranks"),
            std::string::npos);
  EXPECT_EQ(error_of("full-disk path=x"), "column 16: \"x\" is not an absolute path");
}

TEST(DrillScheduleTest, RepeatsWithTheSameSeed) {
  const std::vector<DrillRule> rules = {rule_of("kill,segfault every=10s seed=3")};
  DrillSchedule first(rules), second(rules);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(first.next()->fault, second.next()->fault);
    EXPECT_EQ(first.next()->draw, second.next()->draw);
    first.take(first.next()->at);
    second.take(second.next()->at);
  }
}

// The generator is documented, so its numbers must not change.
TEST(DrillScheduleTest, DrawsFromMersenneTwister) {
  std::mt19937_64 random(7);
  const std::vector<DrillRule> rules = {rule_of("kill seed=7")};
  const DrillSchedule schedule(rules);
  random();
  EXPECT_EQ(schedule.next()->draw, random());
}

TEST(DrillScheduleTest, OrdersRulesByTimeAndDelaysAfterALateFault) {
  const std::vector<DrillRule> rules = {rule_of("kill every=10s"),
                                        rule_of("stop every=4s times=2")};
  DrillSchedule schedule(rules);
  EXPECT_EQ(schedule.next()->at, milliseconds(4'000));
  EXPECT_EQ(schedule.next()->rule, 1u);
  schedule.take(milliseconds(5'000));  // A second late.
  EXPECT_EQ(schedule.next()->at, milliseconds(9'000));
  schedule.take(milliseconds(9'000));
  EXPECT_EQ(schedule.next()->rule, 0u);
  schedule.take(milliseconds(10'000));
  EXPECT_EQ(schedule.next()->at, milliseconds(20'000));
}

TEST(DrillScheduleTest, EndsAfterItsTimes) {
  const std::vector<DrillRule> rules = {rule_of("kill every=1s times=1")};
  DrillSchedule schedule(rules);
  schedule.take(milliseconds(1'000));
  EXPECT_FALSE(schedule.next());
}

TEST(DrillTargetTest, PicksRanks) {
  const DrillWorld world = small_world();
  const auto text = [&](const std::string& rule, std::uint64_t draw) {
    return target_text(pick_target(rule_of(rule), Fault::kKill, draw, world), world);
  };
  EXPECT_EQ(text("kill", 6), "rank 2 (a2)");
  EXPECT_EQ(text("kill ranks=first", 6), "rank 0 (a1)");
  EXPECT_EQ(text("kill ranks=all", 6), "ranks 0-3");
  EXPECT_EQ(text("kill ranks=1,3", 1), "rank 3 (a2)");
  EXPECT_EQ(text("kill hosts=a2", 0), "rank 2 (a2)");
  EXPECT_EQ(text("kill ranks=all hosts=a2", 0), "ranks 2-3 (a2)");
}

TEST(DrillTargetTest, LeavesTheLaunchersNetworkAlone) {
  const DrillWorld world = small_world();
  for (std::uint64_t draw = 0; draw < 4; ++draw)
    EXPECT_EQ(target_text(pick_target(rule_of("cut"), Fault::kCut, draw, world), world), "a2");
  const Result<void> named = check_targets(rule_of("cut hosts=a1"), world);
  ASSERT_FALSE(named.ok());
  EXPECT_TRUE(named.error().message.starts_with("column 11: cut needs another machine"));
}

TEST(DrillTargetTest, HasNoTargetIfTheListedRanksHaveExited) {
  DrillWorld world = small_world();
  world.ranks.pop_back();
  EXPECT_TRUE(pick_target(rule_of("kill ranks=3"), Fault::kKill, 0, world).empty());
}

TEST(DrillTargetTest, RejectsUnknownRanksAndHosts) {
  const DrillWorld world = small_world();
  const Result<void> rank = check_targets(rule_of("kill ranks=4"), world);
  ASSERT_FALSE(rank.ok());
  EXPECT_EQ(rank.error().message, "column 12: there is no rank 4: the job has 4 ranks");
  const Result<void> host = check_targets(rule_of("notice hosts=b1"), world);
  ASSERT_FALSE(host.ok());
  EXPECT_EQ(host.error().message, "column 14: the job has no host \"b1\"");
}

TEST(DrillPlanTest, ShowsTheFirstTenFaults) {
  const std::vector<DrillRule> rules = {rule_of("stop every=15s for=5s ranks=first")};
  const std::vector<std::string> lines = drill_plan_lines(rules, small_world());
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_EQ(lines[0], "  15.0 s   stop  rank 0 (a1)  for 5.0 s");
  EXPECT_EQ(lines[10], "  and so on until the job ends");
}

InjectedFault& add_kill(FaultLog& log, int rank, std::uint32_t generation) {
  InjectedFault& fault = log.add(Fault::kKill, kSecondNs);
  fault.ranks = {rank};
  fault.hosts = {"a1"};
  fault.target = "rank " + std::to_string(rank);
  fault.generation = generation;
  return fault;
}

NamedFailure rank_failure(int rank, ExitStatus status, const std::string& text = "") {
  return {.kind = Kind::kRank, .rank = rank, .host = "a1", .status = status, .text = text};
}

TEST(FaultLogTest, AttributesAKillToItsRankAndSignal) {
  FaultLog log;
  add_kill(log, 3, 0);
  log.attempt_failed(rank_failure(3, {.signal = SIGKILL}), 0, 2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
  EXPECT_EQ(log.faults()[0].named_ns, 2 * kSecondNs);
  EXPECT_TRUE(log.faults()[0].has_ended_attempt);
}

TEST(FaultLogTest, RecognizesASignalBehindAShell) {
  FaultLog log;
  add_kill(log, 3, 0);
  log.attempt_failed(rank_failure(3, {.code = 137}), 0, 2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
}

TEST(FaultLogTest, CallsAnotherRankOrCauseWrong) {
  FaultLog log;
  add_kill(log, 3, 0);
  log.attempt_failed(rank_failure(2, {.signal = SIGKILL}), 0, 2 * kSecondNs);
  EXPECT_EQ(correctness_text(log.faults()[0]), "no: rank 2 on a1: SIGKILL");
  add_kill(log, 1, 1);
  log.attempt_failed(rank_failure(1, {.code = 1}), 1, 3 * kSecondNs);
  EXPECT_EQ(correctness_text(log.faults()[1]), "no: rank 1 on a1: exit 1");
}

TEST(FaultLogTest, JudgesAnAttemptOnce) {
  FaultLog log;
  add_kill(log, 3, 0);
  log.attempt_failed(rank_failure(3, {.signal = SIGKILL}), 0, 2 * kSecondNs);
  log.attempt_failed(rank_failure(1, {.code = 1}), 0, 3 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
  EXPECT_TRUE(log.others().empty());
}

TEST(FaultLogTest, ReportsAFailureThatTheDrillDidNotCause) {
  FaultLog log;
  add_kill(log, 3, 0).recovered_ns = 2 * kSecondNs;
  log.attempt_failed(rank_failure(1, {.code = 1}), 1, 3 * kSecondNs);
  EXPECT_EQ(log.others(), std::vector<std::string>{"rank 1 on a1: exit 1"});
}

TEST(FaultLogTest, AttributesTheLossOfAHostToACutAndASupervisorToItsKill) {
  FaultLog log;
  for (const Fault fault : {Fault::kCut, Fault::kKillSupervisor}) {
    log.add(fault, kSecondNs).hosts = {"a2"};
  }
  log.named({.kind = Kind::kSupervisor, .host = "a2"}, 2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kOpen);
  EXPECT_EQ(log.faults()[1].verdict, Verdict::kCorrect);
  log.named({.kind = Kind::kSilence, .host = "a1"}, 2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kOpen);
  log.named({.kind = Kind::kSilence, .host = "a2"}, 5 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
  EXPECT_EQ(log.faults()[0].named_ns, 5 * kSecondNs);
}

TEST(FaultLogTest, AVerdictOutweighsAnEarlierReport) {
  FaultLog log;
  InjectedFault& cut = log.add(Fault::kCut, kSecondNs);
  cut.hosts = {"a2"};
  log.named({.kind = Kind::kSilence, .host = "a2"}, 5 * kSecondNs);
  log.attempt_failed(rank_failure(0, {.code = 1}), 0, 9 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kWrong);
}

TEST(FaultLogTest, FindsAFullDiskInTheRanksLastOutput) {
  FaultLog log;
  log.add(Fault::kFullDisk, kSecondNs).hosts = {"a1"};
  log.attempt_failed(rank_failure(2, {.code = 1}, "OSError: [Errno 28] No space left on device"), 0,
                     2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
}

TEST(FaultLogTest, AttributesAStallToTheStoppedRank) {
  FaultLog log;
  InjectedFault& stop = log.add(Fault::kStop, kSecondNs);
  stop.ranks = {3};
  log.named({.kind = Kind::kStall,
             .text = "Where each rank is:\n  rank 13 (host a1; stopped by a signal)"},
            2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kOpen);
  log.named(
      {.kind = Kind::kStall,
       .text =
           "Where each rank is:\n  ranks 0-2 (host a1)\n  rank 3 (host a1; stopped by a signal)"},
      2 * kSecondNs);
  EXPECT_EQ(log.faults()[0].verdict, Verdict::kCorrect);
}

TEST(FaultLogTest, PrintsATable) {
  FaultLog log;
  EXPECT_EQ(log.table(true), "");
  InjectedFault& kill = add_kill(log, 3, 0);
  kill.at_s = 15;
  kill.recovered_ns = 3 * kSecondNs;
  kill.named_ns = 2 * kSecondNs;
  kill.verdict = Verdict::kCorrect;
  kill.steps_lost = 2;
  log.add(Fault::kStop, kSecondNs).target = "rank 1";
  EXPECT_EQ(
      log.table(true),
      "drill: 2 faults, 0 named wrongly or not at all\n"
      "  #  fault  at s  target  named after s  recovered after s  steps lost  named correctly\n"
      "  1  kill   15.0  rank 3  1.00           2.00               2           yes\n"
      "  2  stop   0.0   rank 1  -              -                  -           -\n");
  EXPECT_EQ(log.table(false).find("steps lost"), std::string::npos);
}

}  // namespace
}  // namespace ivy
