// SPDX-License-Identifier: Apache-2.0
// The lists of --restart-on and --never-restart, and the patterns of users.
#include "launcher/options/cause_list.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "launcher/options/option_values.h"

namespace ivy {
namespace {

std::vector<Cause> list(const std::string& text) {
  Result<std::vector<Cause>> parsed = parse_cause_list(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.ok() ? std::move(parsed).value() : std::vector<Cause>();
}

AttemptCause exited(int code) { return {.status = ExitStatus{.code = code, .signal = 0}}; }
AttemptCause killed(int signal) { return {.status = ExitStatus{.code = 0, .signal = signal}}; }

// Returns the cause of the list that describes the attempt; "-": none.
std::string found(const std::string& text, const AttemptCause& attempt) {
  const std::vector<Cause> causes = list(text);
  const Cause* cause = find_cause(causes, attempt);
  return cause == nullptr ? "-" : cause->text;
}

TEST(CauseListTest, FindsExitCodesAndSignals) {
  EXPECT_EQ(found("2,7-9", exited(7)), "7-9");
  EXPECT_EQ(found("2,7-9", exited(10)), "-");
  EXPECT_EQ(found("exit", exited(1)), "exit");
  EXPECT_EQ(found("exit", killed(SIGSEGV)), "-");
  EXPECT_EQ(found("signal", killed(SIGSEGV)), "signal");
  EXPECT_EQ(found("signal", exited(139)), "-");
  for (const char* spelling : {"SIGSEGV", "SEGV", "segv"})
    EXPECT_EQ(found(spelling, killed(SIGSEGV)), spelling);
  EXPECT_EQ(found("SIGSEGV", exited(139)), "SIGSEGV") << "a shell reports the signal as a code";
  EXPECT_EQ(found("137", killed(SIGKILL)), "137");
}

TEST(CauseListTest, FindsOtherCauses) {
  AttemptCause attempt = killed(SIGKILL);
  attempt.out_of_memory = true;
  attempt.xids = {79};
  EXPECT_EQ(found("oom", attempt), "oom");
  EXPECT_EQ(found("xid:48,xid:79", attempt), "xid:79");
  EXPECT_EQ(found("xid", attempt), "xid");
  EXPECT_EQ(found("xid,oom", killed(SIGKILL)), "-");
  EXPECT_EQ(found("stall,host-lost", {.host_lost = true}), "host-lost");
  EXPECT_EQ(found("stall", {.has_stalled = true}), "stall");
  EXPECT_EQ(found("store-lost", {.store_lost = true}), "store-lost");
  EXPECT_EQ(found("exit,signal,1-255", {.host_lost = true}), "-");
}

TEST(CauseListTest, RejectsCausesWithoutARankThatFailedIfAHostIsToBeCondemned) {
  EXPECT_TRUE(parse_condemning_causes("xid:79,oom,SIGSEGV,7,/NCCL.*remote/").ok());
  for (const char* text : {"host-lost", "7,stall", "store-lost"}) {
    const Result<std::vector<Cause>> list = parse_condemning_causes(text);
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_NE(list.error().message.find("is not the failure of a rank"), std::string::npos);
  }
}

TEST(CauseListTest, FindsAPatternInTheRanksLastOutput) {
  AttemptCause attempt = exited(1);
  attempt.stderr_tail = "Traceback...\nRuntimeError: NCCL error, remote process\n";
  EXPECT_EQ(found("7,/NCCL.*remote/,8", attempt), "/NCCL.*remote/");
  EXPECT_EQ(found("/CUDA error/", attempt), "-");
  EXPECT_EQ(found("/error, remote/,2", attempt), "/error, remote/") << "commas belong to a pattern";
  EXPECT_EQ(list("/a/b,c/,2").size(), 2u) << "and so do slashes";
  attempt.stderr_tail = "byte \xff here";
  EXPECT_EQ(found("/byte . here/", attempt), "/byte . here/") << "output need not be UTF-8";
}

TEST(CauseListTest, RejectsUnknownCausesWithTheKnownOnes) {
  for (const char* text :
       {"", "7,,8", "0", "256", "9-7", "SIGFOO", "xid:0", "xid:x", "/", "//", "/open"})
    EXPECT_FALSE(parse_cause_list(text).ok()) << text;
  const Result<std::vector<Cause>> wrong = parse_cause_list("7,segfault");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "\"segfault\" is not a cause");
  EXPECT_NE(wrong.error().fix.find("SIGSEGV"), std::string::npos);
  const Result<std::vector<Cause>> pattern = parse_cause_list("/a(/");
  ASSERT_FALSE(pattern.ok());
  EXPECT_NE(pattern.error().message.find("is not a regular expression: missing )"),
            std::string::npos)
      << pattern.error().message;
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_FALSE(parse_cause_list(many).ok());
}

TEST(CauseListTest, KeepsItsText) {
  const std::string text = "2,7-9,SIGSEGV,/a,b/,host-lost";
  EXPECT_EQ(cause_list_text(list(text)), text);
}

TEST(PatternTest, ReadsTheNumberOfItsFirstGroup) {
  const Pattern step = std::move(parse_progress_pattern("step[ =](\\S+)")).value();
  EXPECT_EQ(step.number_in("[rank0] step 1200 loss 0.3"), 1200.0);
  EXPECT_EQ(step.number_in("step=1.5e3,"), 1500.0);
  EXPECT_EQ(step.number_in("step one"), std::nullopt);
  EXPECT_EQ(step.number_in("step inf"), std::nullopt);
  EXPECT_EQ(step.number_in("epoch 3"), std::nullopt);
}

TEST(PatternTest, NeedsAGroupForTheNumber) {
  const Result<Pattern> without = parse_progress_pattern("step \\d+");
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("has no group"), std::string::npos);
  EXPECT_FALSE(parse_progress_pattern("step (").ok());
}

}  // namespace
}  // namespace ivy
