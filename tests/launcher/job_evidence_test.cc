// SPDX-License-Identifier: Apache-2.0
// The evidence that the launcher keeps from hosts' answers about their ranks: bounded for any
// answers, and each queried host has answered or is named.
#include "launcher/hang/job_evidence.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "tests/support/eventually.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMib = 1u << 20;

// AddressSanitizer keeps this much freed memory to detect its use. ThreadSanitizer keeps data about
// all memory ever used, several times its size.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kKeptWhenFreed = 256 * kMib;
#elif defined(__SANITIZE_THREAD__)
constexpr std::size_t kKeptWhenFreed = 1'152 * kMib;
#else
constexpr std::size_t kKeptWhenFreed = 0;
#endif

class JobEvidenceTest : public ::testing::Test, private ExaminedJob {
 protected:
  JobEvidenceTest() : evidence_(loop_, *this) {}

  bool send(std::size_t host, const Command& command) override {
    number_ = command.collect_stacks().number();
    if (answers_by_itself_)
      boost::asio::post(loop_, [this, host, ranks = ranks_answered_] {
        HostEvidence evidence;
        for (const std::uint32_t rank : ranks) evidence.add_ranks()->set_rank(rank);
        say(host, evidence.SerializeAsString());
      });
    return true;
  }
  std::vector<HostRanks> ranks_by_host() override {
    std::vector<HostRanks> all;
    for (std::size_t host = 0; host < hosts_; ++host)
      all.push_back({host, "node" + std::to_string(host), {static_cast<std::uint32_t>(host)}});
    return all;
  }
  bool is_running() override { return true; }
  WatchdogAbort watchdog_abort() override { return WatchdogAbort::kNo; }
  void print(const std::string&) override {}
  void stall_continues() override { is_stalled_ = true; }

  // Queries that many hosts with one rank each.
  void ask(std::size_t hosts) {
    hosts_ = hosts;
    JobEvidence::Question question;
    question.timeout = milliseconds(0);
    evidence_.query(question, [this](const JobEvidence::Answer& answer) { answer_ = answer; });
  }
  void say(std::size_t host, const std::string& bytes, bool is_last = true) {
    EvidencePart part;
    part.set_number(number_);
    part.set_bytes(bytes);
    part.set_last(is_last);
    evidence_.on_part(host, part);
  }
  void print_endlessly(std::size_t host, std::size_t mebibytes) {
    const std::string piece(kMib, 'x');
    for (std::size_t printed = 0; printed < mebibytes; ++printed) say(host, piece, false);
  }
  static std::string answer_of(std::initializer_list<std::uint32_t> ranks) {
    HostEvidence evidence;
    for (const std::uint32_t rank : ranks) evidence.add_ranks()->set_rank(rank);
    return evidence.SerializeAsString();
  }
  void wait() {
    loop_.run_for(test::scaled_time(std::chrono::seconds(20)));
    ASSERT_TRUE(answer_.has_value());
  }
  static std::size_t peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::size_t>(usage.ru_maxrss) << 10;
  }

  boost::asio::io_context loop_{1};
  std::size_t hosts_ = 0;
  std::uint32_t number_ = 0;
  JobEvidence evidence_;
  std::optional<JobEvidence::Answer> answer_;
  bool answers_by_itself_ = false;
  std::vector<std::uint32_t> ranks_answered_{0};  // Of each host that answers by itself.
  bool is_stalled_ = false;
};

TEST_F(JobEvidenceTest, AcceptsEachRankOnceAndOnlyFromItsHost) {
  ask(2);
  say(0, answer_of({0, 1, 0}));
  EXPECT_FALSE(answer_.has_value());
  say(1, answer_of({1}));
  ASSERT_TRUE(answer_.has_value());
  ASSERT_EQ(answer_->hosts.size(), 2u);
  for (const HostStacks& stacks : answer_->hosts) EXPECT_EQ(stacks.evidence.ranks_size(), 1);
  EXPECT_TRUE(answer_->notes.empty());
}

TEST_F(JobEvidenceTest, BoundsTheEvidenceOfEachHost) {
  ask(6);
  for (std::size_t host = 0; host < 5; ++host) print_endlessly(host, 70);
  say(5, answer_of({5}));
  ASSERT_TRUE(answer_.has_value()) << "no answer is pending";
  ASSERT_EQ(answer_->hosts.size(), 1u);
  EXPECT_EQ(answer_->hosts[0].host, "node5");
  ASSERT_EQ(answer_->notes.size(), 5u);
  EXPECT_EQ(answer_->notes[0], "host node0: its answer is too long");
  EXPECT_NE(evidence_text(*answer_, StackDetail::kMain).find("host node4: its answer is too long"),
            std::string::npos);
}

TEST_F(JobEvidenceTest, BoundsEndlessAnswers) {
  ask(8);
  const std::size_t before = peak_bytes();
  for (std::size_t host = 0; host < 8; ++host) print_endlessly(host, 60);
  // While a text grows, it is in memory twice for a moment.
  EXPECT_LT(peak_bytes() - before, (256 + 2 * 64) * kMib + kKeptWhenFreed);
  wait();
  EXPECT_EQ(answer_->silent, (std::vector<std::string>{"node0", "node1", "node2", "node3"}));
  EXPECT_EQ(answer_->notes.size(), 4u);
}

TEST_F(JobEvidenceTest, RejectsAnAnswerOfVeryManyParts) {
  std::string ranks;
  for (std::size_t part = 0; part < kMib; ++part) ranks += {'\x12', '\0'};
  std::string dumps;  // Of one rank.
  for (std::size_t part = 0; part < kMib; ++part) dumps += {'\x92', '\x01', '\0'};
  std::string of_one = "\x12";
  for (std::size_t length = dumps.size(); length > 0; length >>= 7)
    of_one += static_cast<char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
  of_one += dumps;
  const std::size_t before = peak_bytes();
  ask(3);
  say(0, ranks);
  say(1, of_one);
  say(2, answer_of({2}));
  ASSERT_TRUE(answer_.has_value());
  EXPECT_LT(peak_bytes() - before, 32 * kMib);
  EXPECT_EQ(answer_->hosts.size(), 1u);
  EXPECT_EQ(answer_->notes, (std::vector<std::string>{"host node0: its answer cannot be read",
                                                      "host node1: its answer cannot be read"}));
}

TEST_F(JobEvidenceTest, NamesAHostWithAnInvalidAnswer) {
  ask(2);
  say(0, "\xff\xff\xff");
  say(1, answer_of({1}));
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(answer_->notes, std::vector<std::string>{"host node0: its answer cannot be read"});
}

TEST_F(JobEvidenceTest, NamesASilentHostInTime) {
  ask(2);
  say(1, answer_of({1}));
  EXPECT_FALSE(answer_.has_value());
  wait();
  EXPECT_EQ(answer_->silent, std::vector<std::string>{"node0"});
}

// A host answers without ranks if too many other queries are pending there.
TEST_F(JobEvidenceTest, ReportsNoStallFromAnswersWithoutRanks) {
  hosts_ = 1;
  answers_by_itself_ = true;
  ranks_answered_.clear();
  evidence_.watch(std::chrono::seconds(1));
  loop_.run_for(std::chrono::seconds(5));
  EXPECT_FALSE(is_stalled_);
  ranks_answered_ = {0};
  loop_.restart();
  loop_.run_for(std::chrono::seconds(5));
  EXPECT_TRUE(is_stalled_);
}

TEST_F(JobEvidenceTest, ReportsNoStallWhileHostsAreUnreachable) {
  hosts_ = 1;
  JobEvidence::Question question;
  question.timeout = std::chrono::seconds(600);
  for (std::size_t i = 0; i < JobEvidence::kMaxQuestions; ++i)
    evidence_.query(question, [](const JobEvidence::Answer&) {});
  answers_by_itself_ = true;
  evidence_.watch(std::chrono::seconds(1));
  loop_.run_for(std::chrono::seconds(5));
  EXPECT_FALSE(is_stalled_);
  say(0, answer_of({0}));
  loop_.restart();
  loop_.run_for(std::chrono::seconds(5));
  EXPECT_TRUE(is_stalled_);
}

}  // namespace
}  // namespace ivy
