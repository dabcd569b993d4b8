// SPDX-License-Identifier: Apache-2.0
// The job socket without a free descriptor: it waits without spinning, and accepts the pending
// client as soon as one is free.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "launcher/job/control/job_socket.h"
#include "tests/support/eventually.h"
#include "tests/support/resource_limit.h"

namespace ivy {
namespace {

// Answers a description only, as for `ivyctl ps`.
class OnlyDescribes final : public CtlRequests {
 public:
  ctl::JobDescription describe() override { return {}; }
  Result<void> signal(const ctl::SignalJob&) override { return {}; }
  Result<void> stop(const ctl::StopJob&) override { return {}; }
  Result<ctl::StoreDescription> describe_store() override { return ctl::StoreDescription(); }
  void describe_operations(Text) override {}
  void describe_stacks(const ctl::DescribeStacks&, Text) override {}
  void describe_ranks(const ctl::DescribeRanks&, Ranks) override {}
};

TEST(JobSocketDescriptorsTest, WaitsForAFreeDescriptor) {
  boost::asio::io_context loop;
  std::string id = std::to_string(getpid());
  id.resize(31, 'd');
  OnlyDescribes requests;
  Result<std::unique_ptr<JobSocket>> opened = JobSocket::open(loop, id + "e", requests);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  std::unique_ptr<JobSocket> socket = std::move(opened).value();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket->directory().socket();
  std::memcpy(address.sun_path, path.data(), path.size());
  const int client = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  {
    const test::NoDescriptors full;
    EXPECT_LT(loop.run_for(std::chrono::milliseconds(250)), 20u) << "it spins";
  }
  // A client that sends an invalid request is disconnected, which shows that it was accepted.
  ASSERT_EQ(write(client, "\xff\xff\xff\xff", 4), 4);
  char byte = 0;
  EXPECT_TRUE(test::eventually([&] {
    loop.restart();
    loop.poll();
    return read(client, &byte, 1) == 0;
  }));
  ::close(client);
  socket.reset();
  loop.restart();
  loop.poll();
}

}  // namespace
}  // namespace ivy
