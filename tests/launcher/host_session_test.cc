// SPDX-License-Identifier: Apache-2.0
// HostSession over links that this test controls: the other end is a real Session.
#include "launcher/job/hosts/host_session.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "proto/os/clock.h"
#include "tests/launcher/fake_host.h"
#include "tests/support/eventually.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

class HostSessionTest : public ::testing::Test, public HostSessionEvents {
 protected:
  void host_up(std::size_t, const LinkUp&) override {
    EXPECT_FALSE(up_) << "the host came up twice";
    up_ = true;
  }
  void host_event(std::size_t, const Event& event) override {
    notes_.push_back(event.note().text());
  }
  void host_output(std::size_t, const session::OutputChunk&) override {}
  void host_failed(std::size_t, const LinkDown& down) override { failed_ = down.message.line(); }
  void host_lost(std::size_t, HostLoss loss, const RemoteText&) override { lost_ = loss; }
  void host_progress(std::size_t, const LinkStep&) override {}
  void host_input_window(std::size_t) override {}
  void host_alive(std::size_t, const session::Alive&) override {}

  void open(milliseconds lease, bool on_this_host = false) {
    HostSessionOptions options;
    options.on_this_host = on_this_host;
    options.job_id = std::string(32, 'a');
    options.token = std::string(32, 't');
    options.window_bytes = 64u << 10;
    options.lease = lease;
    options.make_link = [this](HostLinkEvents& owner, int) {
      return std::make_unique<FakeLink>(host_, owner);
    };
    session_ = std::make_unique<HostSession>(loop_, options, *this);
    session_->open();
  }

  // Waits until the link is up and the supervisor has answered. If the transport ends after that,
  // it is not a failed start.
  bool attached() {
    if (!eventually([&] { return up_; })) return false;
    host_.send_note("attached");
    const bool there = eventually([&] { return !notes_.empty(); });
    notes_.clear();
    return there;
  }

  // Runs the loop until the condition holds; returns false after the limit.
  bool eventually(const std::function<bool()>& condition,
                  milliseconds limit = test::scaled_time(milliseconds(10'000))) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      loop_.restart();
      loop_.run_one_for(milliseconds(20));
    }
    return true;
  }

  Command signal_command(int signal) {
    Command command;
    command.mutable_signal_workers()->set_signal(signal);
    return command;
  }

  boost::asio::io_context loop_{1};
  FakeHost host_{loop_};
  std::unique_ptr<HostSession> session_;
  bool up_ = false;
  std::vector<std::string> notes_;
  std::optional<std::string> failed_;
  std::optional<HostLoss> lost_;
};

TEST_F(HostSessionTest, CarriesCommandsAndEvents) {
  open(milliseconds(5'000));
  ASSERT_TRUE(eventually([&] { return up_; }));
  session_->send(signal_command(10));
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 1; }));
  EXPECT_EQ(host_.commands[0].signal_workers().signal(), 10);
  host_.send_note("hello");
  ASSERT_TRUE(eventually([&] { return notes_.size() == 1; }));
}

TEST_F(HostSessionTest, RejectedFirstDialFails) {
  host_.answer = FakeHost::Answer::kRefuse;
  open(milliseconds(5'000));
  ASSERT_TRUE(eventually([&] { return failed_.has_value(); }));
  EXPECT_EQ(*failed_, "refused");
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(HostSessionTest, RedialsALostTransportAndLosesNothing) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  int sent = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) host_.send_note(std::to_string(sent++));
    session_->send(signal_command(round + 1));
    if (round % 3 == 0) host_.cut();
    for (int i = 0; i < round % 7; ++i) loop_.poll_one();
    loop_.restart();
  }
  ASSERT_TRUE(eventually([&] { return notes_.size() >= 100 && host_.commands.size() >= 20; }));
  for (int i = 0; i < sent; ++i) EXPECT_EQ(notes_[static_cast<std::size_t>(i)], std::to_string(i));
  EXPECT_EQ(notes_.size(), 100u);
  EXPECT_EQ(host_.commands.size(), 20u);
  EXPECT_GT(host_.dials, 1);
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(HostSessionTest, HeartbeatsOfAnotherThreadStopInAPauseAndAtTheEnd) {
  open(milliseconds(5'000));
  session_->send_alive("frame");
  EXPECT_EQ(host_.alives, 0) << "the link is not up yet";
  ASSERT_TRUE(attached());
  session_->send_alive("frame");
  EXPECT_EQ(host_.alives, 1);
  session_->pause();
  session_->send_alive("frame");
  EXPECT_EQ(host_.alives, 1) << "it would cancel the pause";
  session_->resume();
  session_->send_alive("frame");
  EXPECT_EQ(host_.alives, 2);
  session_->expect_end([] {});
  session_->send_alive("frame");
  EXPECT_EQ(host_.alives, 2) << "nothing tells the thread any longer that the loop runs";
}

// As when an agent exits right after its answer: the launcher cannot know whether the supervisor
// has received its frames.
TEST_F(HostSessionTest, RedialsATransportThatBreaksBeforeHello) {
  host_.deaf = true;
  open(milliseconds(5'000));
  ASSERT_TRUE(eventually([&] { return up_; }));
  session_->send(signal_command(10));
  EXPECT_FALSE(host_.asked.again);
  host_.answer = FakeHost::Answer::kRefuse;
  host_.cut();
  ASSERT_TRUE(eventually([&] { return host_.dials == 3; }))
      << "a host that refuses connections is up";
  EXPECT_TRUE(host_.asked.again);
  EXPECT_FALSE(host_.asked.reattach) << "there may be no supervisor yet";
  host_.deaf = false;
  host_.answer = FakeHost::Answer::kUp;
  host_.send_note("hello");
  ASSERT_TRUE(eventually([&] { return notes_.size() == 1 && host_.commands.size() == 1; }));
  host_.cut();
  ASSERT_TRUE(eventually([&] { return host_.asked.reattach; }));
  host_.send_note("still here");
  ASSERT_TRUE(eventually([&] { return notes_.size() == 2; }));
  EXPECT_EQ(host_.commands.size(), 1u) << "what the host has is not sent again";
  EXPECT_FALSE(failed_ || lost_);
}

TEST_F(HostSessionTest, GivesUpOnTransportsThatAlwaysBreakBeforeHello) {
  host_.deaf = true;
  open(milliseconds(5'000));
  for (int dial = 1; dial <= 3; ++dial) {
    ASSERT_TRUE(eventually([&] { return host_.dials == dial && host_.is_attached(); }));
    EXPECT_FALSE(failed_.has_value());
    host_.cut();
  }
  ASSERT_TRUE(eventually([&] { return failed_.has_value(); }));
  EXPECT_EQ(*failed_, "broken");
  EXPECT_EQ(host_.dials, 3);
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(HostSessionTest, FailsIfTheJobEndsBeforeHello) {
  host_.deaf = true;
  open(milliseconds(5'000));
  ASSERT_TRUE(eventually([&] { return up_; }));
  host_.answer = FakeHost::Answer::kNoSuchJob;
  host_.cut();
  ASSERT_TRUE(eventually([&] { return failed_.has_value(); }));
  EXPECT_EQ(*failed_, "no such job");
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(HostSessionTest, RedialsAHostThatRefusesConnections) {
  open(milliseconds(1'000));
  ASSERT_TRUE(attached());
  host_.answer = FakeHost::Answer::kRefuse;
  host_.cut();
  // Longer than the lease: an address that refuses connections shows that the host runs.
  EXPECT_FALSE(eventually([&] { return lost_.has_value(); }, milliseconds(2'500)));
  host_.answer = FakeHost::Answer::kUp;
  host_.send_note("back");
  ASSERT_TRUE(eventually([&] { return notes_.size() == 1; }));
}

TEST_F(HostSessionTest, LosesAHostThatIsSilentForTheLease) {
  open(milliseconds(2'000));
  ASSERT_TRUE(attached());
  host_.deaf = true;
  host_.answer = FakeHost::Answer::kSilent;
  ASSERT_TRUE(eventually([&] { return lost_.has_value(); }));
  EXPECT_EQ(*lost_, HostLoss::kHost);
  EXPECT_GE(host_.dials, 2) << "after half the lease it dials again";
  EXPECT_EQ(session_->given_up_ns(), session_->last_received_ns() + 2'000'000'000);
}

// If its connection hung up, a supervisor waits longer than the lease for another one.
TEST_F(HostSessionTest, WaitsForTheAbsenceLeaseAfterAHangUp) {
  open(milliseconds(1'000));
  ASSERT_TRUE(attached());
  const std::int64_t cut_ns = monotonic_ns();
  host_.answer = FakeHost::Answer::kSilent;
  host_.cut();
  ASSERT_TRUE(eventually([&] { return lost_.has_value(); }));
  EXPECT_GE(session_->given_up_ns(), cut_ns + std::chrono::nanoseconds(kAbsenceLease).count());
}

// As after SIGSTOP: sshd accepts new transports, but the supervisor does not answer.
TEST_F(HostSessionTest, LosesAFrozenSupervisorAlthoughItsHostAnswers) {
  open(milliseconds(4'000));
  ASSERT_TRUE(attached());
  const std::int64_t frozen_ns = monotonic_ns();
  host_.deaf = true;
  ASSERT_TRUE(eventually([&] { return lost_.has_value(); }));
  EXPECT_EQ(*lost_, HostLoss::kHost);
  EXPECT_GE(host_.dials, 2) << "its host was not dialled again";
  EXPECT_LE(host_.dials, 3) << "a new transport was given up before it could answer";
  EXPECT_LT(monotonic_ns() - frozen_ns, 8'000'000'000);
  EXPECT_LE(session_->last_received_ns(), frozen_ns) << "a new transport was counted as a frame";
}

TEST_F(HostSessionTest, SendsNothingAfterAPauseUntilItEnds) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  session_->pause();
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 1; }));
  EXPECT_TRUE(host_.commands[0].has_pause());
  const int writes = host_.writes;
  // Any frame sent in the moment before the launcher is stopped would revoke the pause.
  session_->send(signal_command(10));
  session_->grant(1u << 20);
  host_.send_note("still here");
  ASSERT_TRUE(eventually([&] { return notes_.size() == 1; }));
  EXPECT_FALSE(eventually([&] { return host_.writes > writes; }, milliseconds(1'200)))
      << "not even a heartbeat";
  session_->resume();
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 2; }));
  EXPECT_EQ(host_.commands[1].signal_workers().signal(), 10);
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(HostSessionTest, SendsThePauseToARedialledHost) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  EXPECT_TRUE(session_->has_paused()) << "no pause was requested";
  host_.answer = FakeHost::Answer::kRefuse;
  host_.cut();
  ASSERT_TRUE(eventually([&] { return host_.dials > 1; }));
  session_->pause();
  EXPECT_FALSE(session_->has_paused());
  host_.answer = FakeHost::Answer::kUp;
  ASSERT_TRUE(eventually([&] { return session_->has_paused(); }));
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 1; }));
  EXPECT_TRUE(host_.commands[0].has_pause());
  const int writes = host_.writes;
  EXPECT_FALSE(eventually([&] { return host_.writes > writes; }, milliseconds(1'200)));
  session_->resume();
  EXPECT_TRUE(eventually([&] { return host_.writes > writes; }));
}

// The handshake of the new transport is a frame, which revokes the pause.
TEST_F(HostSessionTest, ResendsThePauseAfterALostTransport) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  session_->pause();
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 1 && session_->has_paused(); }));
  host_.cut();
  ASSERT_TRUE(eventually([&] { return host_.commands.size() == 2; }));
  EXPECT_TRUE(host_.commands[1].has_pause());
  EXPECT_TRUE(eventually([&] { return session_->has_paused(); }));
}

// As with Ctrl-Z right after the start.
TEST_F(HostSessionTest, DoesNotBlameTheHostForTheLaunchersOwnPause) {
  open(milliseconds(1'000));
  ASSERT_TRUE(attached());
  std::this_thread::sleep_for(milliseconds(2'300));  // As after SIGSTOP: nothing runs.
  EXPECT_FALSE(eventually([&] { return lost_.has_value(); }, milliseconds(300)));
  host_.send_note("still here");
  EXPECT_TRUE(eventually([&] { return !notes_.empty() && notes_.back() == "still here"; }));
}

TEST_F(HostSessionTest, ReportsAMissingJobAsALostSupervisor) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  host_.answer = FakeHost::Answer::kNoSuchJob;
  host_.cut();
  ASSERT_TRUE(eventually([&] { return lost_.has_value(); }));
  EXPECT_EQ(*lost_, HostLoss::kSupervisor);
}

TEST_F(HostSessionTest, TreatsEndOfFileOnThisHostAsFinal) {
  open(milliseconds(5'000), true);
  ASSERT_TRUE(attached());
  host_.cut();
  ASSERT_TRUE(eventually([&] { return lost_.has_value(); }));
  EXPECT_EQ(*lost_, HostLoss::kSupervisor);
  EXPECT_EQ(host_.dials, 1);
}

TEST_F(HostSessionTest, ReportsAnExpectedEndOnce) {
  open(milliseconds(5'000));
  ASSERT_TRUE(attached());
  int over = 0;
  session_->expect_end([&] { ++over; });
  host_.cut();
  ASSERT_TRUE(eventually([&] { return over == 1; }));
  EXPECT_FALSE(lost_.has_value());
}

}  // namespace
}  // namespace ivy
