// SPDX-License-Identifier: Apache-2.0
// Connections that are closed when too many of them send nothing.
#include "launcher/links/srun/dial_back_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "tests/launcher/link_probe.h"

namespace ivy {
namespace {

class DialBackListenerTest : public testing::Test, private DialBackListenerEvents {
 protected:
  void SetUp() override {
    DialBackListenerSettings settings;
    settings.addresses = {"127.0.0.1"};
    settings.keys.hosts = {"step", std::string(kDialKeyBytes, 'k')};
    auto opened = DialBackListener::open(loop_, settings, *this);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    listener_ = *opened;
  }
  void TearDown() override {
    if (listener_) listener_->close();
    for (const int fd : clients_) ::close(fd);
    loop_.restart();
    loop_.run_for(std::chrono::milliseconds(10));
  }

  // DialBackListenerEvents
  void host_dialled(std::uint32_t, std::shared_ptr<DialBackStream>) override {}
  void signal_reported(const DialGreeting&) override {}
  void node_dialled(std::uint32_t, std::shared_ptr<DialBackStream>) override {}
  void peer_rejected(const std::string& address, const std::string&) override {
    rejected_.push_back(address);
  }

  // Connects from this loopback address and sends nothing.
  int connect_from(const char* address) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    clients_.push_back(fd);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    inet_pton(AF_INET, address, &here.sin_addr);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&here), sizeof here), 0);
    sockaddr_in there = here;
    inet_pton(AF_INET, "127.0.0.1", &there.sin_addr);
    there.sin_port = htons(listener_->addresses().front().port);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
    loop_.restart();
    loop_.run_for(std::chrono::milliseconds(1));
    return fd;
  }
  static bool is_open(int fd) {
    char byte = 0;
    return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

  boost::asio::io_context loop_;
  std::shared_ptr<DialBackListener> listener_;
  std::vector<int> clients_;
  std::vector<std::string> rejected_;
};

TEST_F(DialBackListenerTest, DropsConnectionsOfTheAddressThatFloods) {
  const int host = connect_from("127.0.0.2");
  std::vector<int> flood;
  for (std::size_t i = 0; i < DialBackListener::kMaxHalfOpen + 8; ++i)
    flood.push_back(connect_from("127.0.0.3"));
  EXPECT_TRUE(is_open(host)) << "the oldest of all, but not of the address with the most";
  EXPECT_FALSE(is_open(flood.front()));
  EXPECT_TRUE(is_open(flood.back()));
  EXPECT_EQ(rejected_, std::vector<std::string>{"127.0.0.3"});
}

}  // namespace
}  // namespace ivy
