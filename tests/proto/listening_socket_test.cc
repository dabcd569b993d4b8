// SPDX-License-Identifier: Apache-2.0
#include "proto/os/listening_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ivy {
namespace {

std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

bool answers_on_ipv4(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return connected;
}

bool has_ipv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) close(fd);
  return has;
}

TEST(ListeningSocket, DoesNotBlockAndIsNotInherited) {
  const Result<int> fd = listen_tcp("127.0.0.1", 0);
  ASSERT_TRUE(fd.ok()) << fd.error().message;
  EXPECT_NE(fcntl(*fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(*fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(answers_on_ipv4(port_of(*fd)));
  close(*fd);
}

TEST(ListeningSocket, AcceptsIpv4OnlyOnTheUnspecifiedIpv6Address) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  const Result<int> every = listen_tcp("::", 0);
  const Result<int> loopback = listen_tcp("::1", 0);
  ASSERT_TRUE(every.ok()) << every.error().message;
  ASSERT_TRUE(loopback.ok()) << loopback.error().message;
  EXPECT_TRUE(answers_on_ipv4(port_of(*every)));
  EXPECT_FALSE(answers_on_ipv4(port_of(*loopback)));
  // The same port is therefore free for IPv4.
  const Result<int> beside = listen_tcp("127.0.0.1", port_of(*loopback));
  EXPECT_TRUE(beside.ok());
  for (const int fd : {*every, *loopback, beside.ok() ? *beside : -1}) close(fd);
}

TEST(ListeningSocket, NamesAnAddressInUse) {
  const Result<int> first = listen_tcp("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const std::uint16_t port = port_of(*first);
  const Result<int> second = listen_tcp("127.0.0.1", port);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_NE(second.error().message.find("127.0.0.1 port " + std::to_string(port)),
            std::string::npos)
      << second.error().message;
  close(*first);
}

TEST(ListeningSocket, LeavesAReservedPortToItsOwner) {
  // As ReservedPort keeps it: bound, with SO_REUSEADDR, and not listening.
  const int reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ASSERT_EQ(bind(reserved, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const int on = 1;
  setsockopt(reserved, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const Result<int> other = listen_tcp("127.0.0.1", port_of(reserved), PortReuse::kNever);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Code::kAlreadyExists);
  const Result<int> owner = listen_tcp("127.0.0.1", port_of(reserved));
  ASSERT_TRUE(owner.ok()) << owner.error().message;
  close(*owner);
  close(reserved);
}

TEST(ListeningSocket, RejectsAddressesOfOtherHosts) {
  for (const char* text : {"", "localhost", "10.0.0", "[::1]", "1.2.3.4:5"}) {
    const Result<int> fd = listen_tcp(text, 0);
    ASSERT_FALSE(fd.ok()) << text;
    EXPECT_EQ(fd.error().code, Code::kInvalidArgument) << text;
  }
  const Result<int> elsewhere = listen_tcp("192.0.2.1", 0);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_EQ(elsewhere.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ivy
