// SPDX-License-Identifier: Apache-2.0
// Reserved ports: never assigned to another process, but the framework can still listen on them.
#include "agent/node/spawn/reserved_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <utility>
#include <vector>

#include "tests/support/no_ipv6.h"

namespace ivy {
namespace {

// Listens on the port of the IPv4 wildcard address as another process would; returns -1 on failure.
int listen_on(std::uint16_t port, int reuse) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0)
    return fd;
  close(fd);
  return -1;
}

TEST(ReservedPortTest, KeepsAPortThatOnlyTheFrameworkCanServeOn) {
  const Result<ReservedPort> port = ReservedPort::reserve(0, 0);
  ASSERT_TRUE(port.ok()) << port.error().message;
  EXPECT_EQ(listen_on(port->port(), 0), -1);
  const int framework = listen_on(port->port(), 1);
  EXPECT_GE(framework, 0);
  close(framework);
}

TEST(ReservedPortTest, UsesIpv4OnAHostWithoutIpv6) {
  constexpr int kSkipped = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!test::disable_ipv6()) _exit(kSkipped);
    if (socket(AF_INET6, SOCK_STREAM, 0) >= 0) _exit(1);
    const Result<ReservedPort> port = ReservedPort::reserve(0, 0);
    if (!port.ok()) _exit(2);
    if (listen_on(port->port(), 0) != -1) _exit(3);  // Another program.
    _exit(listen_on(port->port(), 1) >= 0 ? 0 : 4);  // The framework.
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "this kernel has no seccomp filters";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ReservedPortTest, NamesAnExplicitPortThatIsBusy) {
  const Result<ReservedPort> free = ReservedPort::reserve(0, 0);
  ASSERT_TRUE(free.ok());
  const int stranger = listen_on(free->port(), 1);
  ASSERT_GE(stranger, 0);
  const Result<ReservedPort> busy = ReservedPort::reserve(free->port(), free->port());
  ASSERT_FALSE(busy.ok());
  EXPECT_EQ(busy.error().code, Code::kAlreadyExists);
  EXPECT_NE(busy.error().message.find(":" + std::to_string(free->port()) + " is in use"),
            std::string::npos)
      << busy.error().message;
  close(stranger);
}

TEST(ReservedPortTest, TakesAFreePortOfTheRange) {
  const Result<ReservedPort> some = ReservedPort::reserve(0, 0);
  ASSERT_TRUE(some.ok());
  const std::uint32_t low = some->port();
  const int stranger = listen_on(some->port(), 1);
  ASSERT_GE(stranger, 0);
  const Result<ReservedPort> port = ReservedPort::reserve(low, low + 20);
  ASSERT_TRUE(port.ok()) << port.error().message;
  EXPECT_GT(port->port(), low);
  EXPECT_LE(port->port(), low + 20);
  close(stranger);
}

TEST(ReservedPortTest, ReservesEachPortOfTheRangeOnce) {
  const Result<ReservedPort> first = ReservedPort::reserve(0, 0);
  ASSERT_TRUE(first.ok());
  const std::uint32_t low = first->port();
  std::vector<ReservedPort> kept;
  std::set<std::uint16_t> ports = {first->port()};
  for (int i = 0; i < 20; ++i) {
    Result<ReservedPort> port = ReservedPort::reserve(low, low + 60);
    ASSERT_TRUE(port.ok()) << port.error().message;
    EXPECT_TRUE(ports.insert(port->port()).second) << port->port() << " is reserved twice";
    kept.push_back(std::move(port).value());
  }
}

TEST(ReservedPortTest, RejectsAnInvalidRange) {
  EXPECT_EQ(ReservedPort::reserve(30000, 29000).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ReservedPort::reserve(1, 70000).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ivy
