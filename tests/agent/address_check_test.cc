// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/address_check.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

namespace ivy {
namespace {

using std::chrono::milliseconds;

bool raise_loopback() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  const bool raised = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return raised;
}

// Runs the check in a separate network namespace. Its interfaces, loopback included, are down, so
// no address has a route. Loopback is brought up after `up_after`, if that is set.
AddressChecked check_without_route(std::optional<milliseconds> up_after) {
  boost::asio::io_context loop;
  boost::asio::steady_timer timer(loop);
  if (up_after) {
    timer.expires_after(*up_after);
    timer.async_wait([](const boost::system::error_code&) { raise_loopback(); });
  }
  CheckAddress request;
  request.set_address("127.0.0.1");
  request.set_port(9);
  AddressChecked answer;
  check_address(loop, request, [&](const AddressChecked& checked) { answer = checked; });
  loop.run();
  return answer;
}

constexpr int kNotPermitted = 77;

int in_own_network(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
      _exit(kNotPermitted);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AddressCheckTest, ToleratesARouteThatIsTemporarilyMissing) {
  const int code = in_own_network([] {
    const AddressChecked answer = check_without_route(milliseconds(300));
    return answer.reachable() && answer.error().empty();
  });
  if (code == kNotPermitted) GTEST_SKIP() << "no network namespaces for this user";
  EXPECT_EQ(code, 0);
}

TEST(AddressCheckTest, NamesARouteThatStaysMissing) {
  const int code = in_own_network([] {
    const AddressChecked answer = check_without_route(std::nullopt);
    return !answer.reachable() && answer.error() == "Network is unreachable";
  });
  if (code == kNotPermitted) GTEST_SKIP() << "no network namespaces for this user";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace ivy
