// SPDX-License-Identifier: Apache-2.0
// A real process with NCCL's profiler plug-in on a real control socket: it publishes its position
// but does not attach as a rank.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

#include "agent/node/supervisor/control_server.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

class ObserveTest : public testing::Test, private EventSink {
 protected:
  ObserveTest() {
    std::string pattern = "/tmp/ivy-observe-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    EXPECT_TRUE(server_.listen(directory_ + "/control.sock").ok());
    server_.begin({2, 6, {{"here", 4}, {"there", 2}}, {0, 1, 2, 3}});
  }
  ~ObserveTest() override {
    unlink(server_.path().c_str());
    rmdir(directory_.c_str());
  }

  void send(const Event&) override { ++events_; }

  pid_t start(const char* rank, const char* generation) {
    const pid_t child = fork();
    if (child != 0) return child;
    setenv("IVY_CONTROL", server_.path().c_str(), 1);
    setenv("IVY_RANK", rank, 1);
    setenv("IVY_WORLD_SIZE", "6", 1);
    setenv("IVY_GENERATION", generation, 1);
    setenv("IVY_JOB_ID", "job", 1);
    setenv("IVY_NCCL_PROFILER", "kernels", 1);
    setenv("NCCL_PROFILER_PLUGIN", IVY_NCCL_PROFILER_PLUGIN, 1);
    execl(IVY_TEST_CHILDREN "/nccl_caller", "nccl_caller", "rank", "5", "0", nullptr);
    _exit(99);
  }
  static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  HostEvidence places() {
    HostEvidence evidence;
    server_.status().observed().add_places(static_cast<std::uint64_t>(monotonic_ns()), evidence);
    return evidence;
  }
  // Serves until a process has reached the operation, for at most 20 s.
  bool serves_until(std::uint64_t sequence) {
    for (int i = 0; i < 400; ++i) {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(50));
      const HostEvidence evidence = places();
      for (const NcclPosition& place : evidence.nccl_places())
        if (place.operation().sequence() == sequence) return true;
    }
    return false;
  }

  std::string directory_;
  boost::asio::io_context loop_;
  std::size_t events_ = 0;
  ControlServer server_{loop_, *this};
};

TEST_F(ObserveTest, ReadsThePositionOfAProcessAfterItsExit) {
  const pid_t child = start("3", "2");
  EXPECT_TRUE(serves_until(5));
  end(child);
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(50));
  const HostEvidence evidence = places();
  ASSERT_EQ(evidence.nccl_places_size(), 1);
  const NcclPosition& place = evidence.nccl_places(0);
  EXPECT_EQ(place.rank(), 3u);
  EXPECT_EQ(place.pid(), child);
  EXPECT_EQ(place.communicator(), "0x1a2b tp");
  EXPECT_EQ(place.member(), 3u);
  EXPECT_EQ(place.members(), 6u);
  EXPECT_FALSE(place.is_over());
  EXPECT_EQ(events_, 0u) << "its exit is not an event";
}

TEST_F(ObserveTest, RejectsPageRequestsOfOtherGenerationsAndRanks) {
  const pid_t late = start("3", "1");
  const pid_t stranger = start("5", "2");
  const pid_t good = start("0", "2");
  EXPECT_TRUE(serves_until(4));
  EXPECT_EQ(places().nccl_places_size(), 1);
  for (const pid_t child : {late, stranger, good}) end(child);
}

}  // namespace
}  // namespace ivy
