// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/allocation_end.h"

#include <gtest/gtest.h>

#include <vector>

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using enum SignalMeaning;
using enum SignalSource;

std::string left(const std::string& text) {
  const Result<std::optional<seconds>> parsed = parse_time_left(text);
  if (!parsed.ok()) return "error " + parsed.error().message;
  return *parsed ? std::to_string((*parsed)->count()) : "never";
}

TEST(AllocationEndTest, ReadsTheOutputOfSqueue) {
  const std::pair<const char*, const char*> cases[] = {
      {"0:00", "0"},
      {"0:07", "7"},
      {"59:58", "3598"},
      {"1:00:00", "3600"},
      {"1:02:03", "3723"},
      {"1-00:00:00", "86400"},
      {"10-02:03:04", "871384"},
      {"UNLIMITED", "never"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(left(text), expected) << text;
  for (const char* text : {"", "INVALID", "NOT_SET", "7", "1-2", "1-2:3", ":", "1:", "a:b", "-1:00",
                           "1:2:3:4", "1--2:3:4", "99999999999:00"})
    EXPECT_EQ(left(text), "error \"" + std::string(text) + "\" is not a time") << text;
}

// An allocation that ends at 1,000 s; times are in seconds.
constexpr std::int64_t kEnd = 1'000'000;

struct Clock {
  AllocationEnd end;
  std::int64_t now_ms = 0;

  explicit Clock(std::optional<int> stop_before_s, int signal = SIGTERM)
      : end(EndSettings{
            stop_before_s ? std::optional<milliseconds>(seconds(*stop_before_s)) : std::nullopt,
            signal}) {}

  // Returns all steps up to that time, each with its second; kQuery is answered with `answer_ms`.
  std::string run(std::int64_t until_s, std::optional<std::int64_t> answer_ms = kEnd) {
    std::string printed;
    while (end.next_ms() && *end.next_ms() <= until_s * 1000) {
      now_ms = std::max(now_ms, *end.next_ms());
      const EndStep step = end.due(now_ms);
      const char* const names[] = {"nothing", "ask", "notice", "stop"};
      printed += (printed.empty() ? "" : " ") + std::string(names[static_cast<int>(step)]) + "@" +
                 std::to_string(now_ms / 1000);
      if (step == EndStep::kQuery) end.learned(answer_ms, now_ms);
    }
    now_ms = until_s * 1000;
    return printed;
  }
  SignalMeaning receive(int signal, SignalSource source, std::int64_t at_s) {
    now_ms = at_s * 1000;
    return end.received(signal, source, now_ms);
  }
};

TEST(AllocationEndTest, SendsOneNoticeAndStopsInTime) {
  Clock clock(120);
  EXPECT_FALSE(clock.end.learned(kEnd, 0));
  EXPECT_EQ(clock.run(1000), "ask@440 ask@660 ask@770 ask@830 ask@874 notice@880 stop@985");
  EXPECT_FALSE(clock.end.next_ms().has_value());
}

TEST(AllocationEndTest, DividesAShortRemainder) {
  Clock clock(8);
  EXPECT_FALSE(clock.end.learned(20'000, 0));
  EXPECT_EQ(clock.run(20, 20'000), "notice@12 stop@18");
}

TEST(AllocationEndTest, QueriesAgainAndAcceptsAnotherEnd) {
  Clock clock(100);
  clock.end.learned(kEnd, 0);
  EXPECT_EQ(clock.run(893), "ask@450 ask@675 ask@787 ask@847");
  EXPECT_EQ(clock.run(899, kEnd + 60'000), "ask@894") << "a minute more";
  EXPECT_EQ(clock.run(1060, kEnd + 60'000), "ask@954 notice@960 stop@1045");

  Clock endless(100);
  endless.end.learned(kEnd, 0);
  EXPECT_EQ(endless.run(5000, std::nullopt), "ask@450");

  Clock without(std::nullopt);
  without.end.learned(std::nullopt, 0);
  EXPECT_FALSE(without.end.next_ms().has_value());
}

// The controller is being restarted: the known end remains valid, and the query is repeated.
TEST(AllocationEndTest, QueriesAgainAfterAFailure) {
  Clock clock(100);
  clock.end.learned(kEnd, 0);
  ASSERT_EQ(clock.end.due(450'000), EndStep::kQuery);
  clock.end.query_failed(455'000);
  clock.now_ms = 455'000;
  EXPECT_EQ(clock.run(895, kEnd + 60'000), "ask@677 ask@818 ask@889");
  EXPECT_EQ(clock.run(1060, kEnd + 60'000), "ask@949 notice@960 stop@1045");

  Clock late(100);
  late.end.learned(kEnd, 860'000);
  ASSERT_EQ(late.end.due(894'000), EndStep::kQuery);
  late.end.query_failed(899'000);
  EXPECT_EQ(late.end.next_ms(), 900'000) << "nothing is put off";
  late.end.due(900'000);
  late.end.query_failed(901'000);
  EXPECT_EQ(late.run(1000), "stop@985") << "the ranks are ending";
}

TEST(AllocationEndTest, WatchesOnlyTheEndWithoutTheFlag) {
  Clock clock(std::nullopt);
  EXPECT_FALSE(clock.end.learned(kEnd, 0));
  EXPECT_EQ(clock.run(2000), "ask@497 ask@746 ask@870 ask@932 ask@989");
}

TEST(AllocationEndTest, HalvesAnAllocationThatIsTooShort) {
  Clock clock(120);
  EXPECT_TRUE(clock.end.learned(60'000, 0));
  EXPECT_EQ(clock.run(60, 60'000), "ask@24 notice@30 stop@52");
  // An end that is learned late does not count as a short allocation: the earlier time did exist.
  Clock late(120);
  late.end.learned(kEnd, 0);
  EXPECT_FALSE(late.end.learned(kEnd, 900'000));
  EXPECT_EQ(late.run(900), "notice@880");
}

TEST(AllocationEndTest, SendsOneNoticeFromEitherSource) {
  struct Case {
    SignalSource first, second;
  };
  for (const Case& c : {Case{kLauncher, kStep}, {kStep, kLauncher}}) {
    Clock clock(120, SIGUSR1);
    clock.end.learned(kEnd, 0);
    EXPECT_EQ(clock.receive(SIGUSR1, c.first, 830), kNotice);
    EXPECT_TRUE(clock.end.has_notice());
    EXPECT_EQ(clock.receive(SIGUSR1, c.second, 831), kKnown);
    // ivyrun's own timer has only the stop left.
    EXPECT_EQ(clock.run(984), "ask@831");
    EXPECT_EQ(clock.run(1000), "stop@985");
  }
  // ivyrun's notice came first.
  Clock clock(120, SIGUSR1);
  clock.end.learned(kEnd, 870'000);
  EXPECT_EQ(clock.run(885), "notice@880");
  EXPECT_EQ(clock.receive(SIGUSR1, kLauncher, 890), kKnown);
  EXPECT_EQ(clock.receive(SIGUSR1, kLauncher, 895), kNotice) << "a user's kill -USR1";
}

// ivyrun ignores Slurm's signal whenever and however often it arrives: the ranks already have had a
// notice.
TEST(AllocationEndTest, IgnoresSlurmsSignalAfterItsOwnNotice) {
  struct Received {
    SignalSource source;
    std::int64_t at_s;
    SignalMeaning as_term, as_usr1;
  };
  const std::vector<Received> cases[] = {
      {{kStep, 880, kKnown, kKnown}},
      {{kLauncher, 820, kKnown, kKnown}},
      // Each host of the step reports the signal, and so does the step's own transport.
      {{kStep, 705, kKnown, kKnown}, {kStep, 706, kKnown, kKnown}, {kStep, 707, kKnown, kKnown}},
      {{kLauncher, 880, kKnown, kKnown},
       {kStep, 881, kKnown, kKnown},
       {kStep, 882, kKnown, kKnown}},
      // A second signal from the same source is a new one.
      {{kStep, 710, kKnown, kKnown}, {kStep, 800, kTimeIsUp, kNotice}},
      {{kLauncher, 710, kKnown, kKnown},
       {kLauncher, 720, kTimeIsUp, kNotice},
       {kStep, 721, kKnown, kKnown}},
  };
  for (const std::vector<Received>& deliveries : cases) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      Clock clock(300, signal);
      clock.end.learned(kEnd, 690'000);
      ASSERT_EQ(clock.run(701), "notice@700");
      for (const Received& received : deliveries)
        EXPECT_EQ(clock.receive(signal, received.source, received.at_s),
                  signal == SIGTERM ? received.as_term : received.as_usr1)
            << signal << " at " << received.at_s;
    }
  }
  // Slurm sends TERM after ivyrun sent another signal: the ranks have had their time.
  Clock other(300, SIGUSR1);
  other.end.learned(kEnd, 690'000);
  ASSERT_EQ(other.run(701), "notice@700");
  EXPECT_EQ(other.receive(SIGTERM, kLauncher, 880), kTimeIsUp);
  EXPECT_EQ(other.receive(SIGTERM, kStep, 881), kKnown);
  // A user sent the early notice, and therefore the TERM that follows it, too.
  Clock early(120, SIGUSR1);
  early.end.learned(kEnd, 0);
  EXPECT_EQ(early.receive(SIGUSR1, kLauncher, 100), kNotice);
  EXPECT_EQ(early.receive(SIGTERM, kLauncher, 110), kInterrupt);
}

TEST(AllocationEndTest, ForwardsOtherSignalsOnce) {
  Clock clock(std::nullopt);
  EXPECT_EQ(clock.receive(SIGUSR1, kLauncher, 10), kPassOn);
  EXPECT_EQ(clock.receive(SIGUSR1, kStep, 10), kKnown);
  EXPECT_EQ(clock.receive(SIGUSR1, kLauncher, 11), kPassOn);
  EXPECT_EQ(clock.receive(SIGUSR2, kStep, 11), kPassOn);
  EXPECT_FALSE(clock.end.has_notice());
  EXPECT_EQ(clock.receive(SIGUSR1, kStep, 500), kPassOn) << "another one, much later";
  EXPECT_EQ(clock.receive(SIGUSR1, kStep, 501), kKnown) << "the same, by another host";
  EXPECT_EQ(clock.receive(SIGUSR1, kStep, 510), kPassOn);
  Clock preempt(std::nullopt, SIGUSR1);
  EXPECT_EQ(preempt.receive(SIGUSR1, kLauncher, 10), kNotice) << "also where no end is known";
}

TEST(AllocationEndTest, TreatsTermAsANoticeOnlyBeforeTheEnd) {
  Clock clock(120);
  clock.end.learned(kEnd, 0);
  EXPECT_EQ(clock.receive(SIGTERM, kLauncher, 100), kInterrupt) << "scancel";
  EXPECT_EQ(clock.receive(SIGTERM, kLauncher, 814), kInterrupt);
  EXPECT_EQ(clock.receive(SIGTERM, kLauncher, 830), kNotice) << "--signal=B:TERM@120, early";
  EXPECT_EQ(clock.run(884), "ask@830");
  EXPECT_EQ(clock.receive(SIGTERM, kLauncher, 885), kTimeIsUp) << "or scancel: requeue() asks";
  EXPECT_EQ(clock.receive(SIGTERM, kLauncher, 995), kTimeIsUp);

  Clock timer(120);
  timer.end.learned(kEnd, 870'000);
  EXPECT_EQ(timer.run(881), "notice@880");
  EXPECT_EQ(timer.receive(SIGTERM, kLauncher, 885), kKnown);
  EXPECT_EQ(timer.receive(SIGTERM, kLauncher, 886), kTimeIsUp);

  Clock cancelled(std::nullopt);
  EXPECT_EQ(cancelled.receive(SIGTERM, kStep, 100), kInterrupt);
  EXPECT_EQ(cancelled.receive(SIGTERM, kLauncher, 100), kKnown);
  EXPECT_EQ(cancelled.receive(SIGTERM, kLauncher, 101), kInterrupt);

  Clock plain(std::nullopt);
  EXPECT_EQ(plain.receive(SIGTERM, kLauncher, 100), kInterrupt) << "nothing is known";
  plain.end.learned(kEnd, 0);
  EXPECT_EQ(plain.receive(SIGTERM, kLauncher, 900), kInterrupt);
  EXPECT_EQ(plain.receive(SIGTERM, kLauncher, 1003), kTimeIsUp);
}

TEST(AllocationEndTest, ShortensTheGraceToTheRemainingTime) {
  Clock clock(120);
  EXPECT_EQ(clock.end.grace(seconds(30), 0), seconds(30)) << "no end is known";
  clock.end.learned(kEnd, 0);
  EXPECT_EQ(clock.end.grace(seconds(30), 0), seconds(30));
  EXPECT_EQ(clock.end.grace(seconds(30), 985'000), seconds(10));
  EXPECT_EQ(clock.end.grace(seconds(30), 991'000), seconds(6));
  EXPECT_EQ(clock.end.grace(seconds(5), 985'000), seconds(5));
  EXPECT_EQ(clock.end.grace(seconds(30), 1'001'000), seconds(25)) << "Slurm's KillWait";
}

// As after scontrol update TimeLimit=+1:00:00, if ivyrun had no reason to query again.
TEST(AllocationEndTest, RecognizesAnExtendedAllocation) {
  Clock clock(std::nullopt);
  clock.end.learned(kEnd, 0);
  EXPECT_TRUE(clock.end.is_last_call(kEnd + 40'000)) << "KILL may be on its way";
  const std::int64_t later = kEnd + 600'000;
  EXPECT_FALSE(clock.end.is_last_call(later));
  EXPECT_EQ(clock.end.received(SIGTERM, kLauncher, later), kInterrupt);
  EXPECT_EQ(clock.end.grace(seconds(300), later), milliseconds(seconds(300)));
}

TEST(AllocationEndTest, StopsAPodAfterItsNotice) {
  Clock clock(30);
  EXPECT_FALSE(clock.end.next_ms().has_value());
  clock.end.ends_after_notice(100'000);
  EXPECT_EQ(clock.receive(SIGTERM, SignalSource::kLauncher, 100), SignalMeaning::kNotice);
  EXPECT_EQ(clock.end.grace(seconds(30), 122'500), seconds(5)) << "a third is kept for the end";
  EXPECT_EQ(clock.run(200), "stop@122");
  Clock twice(30, SIGUSR1);
  twice.end.ends_after_notice(100'000);
  EXPECT_EQ(twice.receive(SIGUSR1, SignalSource::kLauncher, 100), SignalMeaning::kNotice);
  EXPECT_EQ(twice.receive(SIGTERM, SignalSource::kLauncher, 101), SignalMeaning::kTimeIsUp);
}

// The kubelet sends KILL at the end; only Slurm waits longer.
TEST(AllocationEndTest, StopsAPodBeforeItsEndInTheLastSeconds) {
  Clock clock(8);
  clock.end.ends_after_notice(100'000);
  EXPECT_EQ(clock.receive(SIGTERM, SignalSource::kLauncher, 100), SignalMeaning::kNotice);
  EXPECT_EQ(clock.run(200), "stop@106");
  EXPECT_EQ(clock.end.grace(seconds(30), 105'000), seconds(2));
  EXPECT_EQ(clock.end.grace(seconds(30), 108'000), seconds(0));
  EXPECT_EQ(clock.end.grace(seconds(30), 109'000), seconds(0));
}

}  // namespace
}  // namespace ivy
