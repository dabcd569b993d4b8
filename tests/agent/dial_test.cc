// SPDX-License-Identifier: Apache-2.0
// The dialer as slurmstepd runs it, around the real warden and a supervisor that echoes; the test
// acts as the launcher's TLS server.
#include "agent/node/roles/dial.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <fstream>

#include "agent/node/spawn/job_directory.h"
#include "proto/os/listening_socket.h"
#include "proto/trust/psk_tls.h"
#include "proto/wire/dial_wire.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using Step = PskStream::Step;

constexpr std::uint32_t kHost = 1;
const std::string kKey(kDialKeyBytes, 'k');

std::vector<pid_t> children_of(pid_t parent) {
  const std::string pid = std::to_string(parent);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

std::string name_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

// A host's connection, seen from the launcher.
class Guest {
 public:
  Guest(PskTls& tls, int fd) : fd_(fd) {
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    stream_ = tls.stream(fd_);
  }
  ~Guest() { hang_up(); }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  bool do_handshake() {
    return until_done([this] { return stream_.do_handshake(); }) == Step::kDone;
  }
  std::string read_line() {
    std::string line;
    while (!line.ends_with('\n')) {
      char byte = 0;
      std::size_t count = 0;
      if (until_done([&] { return stream_.read(&byte, 1, count); }) != Step::kDone) break;
      line += byte;
    }
    return line;
  }
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      std::size_t count = 0;
      ASSERT_EQ(until_done([&] { return stream_.write(bytes, count); }), Step::kDone);
      bytes.remove_prefix(count);
    }
  }
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  template <class Try>
  Step until_done(Try attempt) {
    const auto deadline = std::chrono::steady_clock::now() + scaled_time(std::chrono::seconds(20));
    for (;;) {
      const Step step = attempt();
      if (step != Step::kWantRead && step != Step::kWantWrite) return step;
      if (std::chrono::steady_clock::now() > deadline) return step;
      pollfd waiting{fd_, static_cast<short>(step == Step::kWantRead ? POLLIN : POLLOUT), 0};
      poll(&waiting, 1, 100);
    }
  }

  int fd_;
  PskStream stream_;
};

class DialTest : public testing::Test {
 protected:
  DialTest() {
    std::signal(SIGPIPE, SIG_IGN);
    tls_ = PskTls::make(PskTls::Side::kServer, job_id_, kKey).value();
    listener_ = listen_tcp("127.0.0.1", 0).value();
    sockaddr_in address{};
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~DialTest() override {
    if (listener_ >= 0) close(listener_);
  }

  void start_dialer(const std::string& node = "node2") {
    SpawnRequest request = request_for("echo_node", {"dial"});
    request.environment = {{"SLURMD_NODENAME", node}};
    request.stdin_fd = input_.reader();
    request.stderr_fd = errors_.writer();
    dialer_ = spawn(request).process;
    input_.close_end(0);
    errors_.close_end(1);
    DialOrder order;
    order.job_id = job_id_;
    order.key = kKey;
    // The dialer must skip the first address: nothing listens there.
    order.addresses = {{"127.0.0.1", 1}, {"127.0.0.1", port_}};
    order.hosts = {"node1", "node2"};
    const std::string text = encode_dial_order(order) + "bundle for others\n";
    EXPECT_EQ(write(input_.writer(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  std::unique_ptr<Guest> accept_guest() {
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(scaled_time(std::chrono::seconds(20)).count())) != 1)
      return nullptr;
    return std::make_unique<Guest>(*tls_, accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  }
  // Returns a connection whose greeting was correct and has been answered.
  std::unique_ptr<Guest> welcome(const std::string& verb) {
    std::unique_ptr<Guest> guest = accept_guest();
    if (guest == nullptr || !guest->do_handshake()) return nullptr;
    EXPECT_EQ(guest->read_line(), "IVYDIAL 1 1\n");
    guest->write("IVYOPEN 1 " + verb + " " + job_id_ + " 1\n");
    return guest;
  }
  static void expect_echo(Guest& guest, const std::string& line) {
    guest.write(line);
    EXPECT_EQ(guest.read_line(), line);
  }
  void stop_listening() {
    close(listener_);
    listener_ = -1;
  }

  LeakGuard guard_;
  const std::string job_id_ = random_job_id();
  std::unique_ptr<PskTls> tls_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  Pipe input_;
  Pipe errors_;
  SpawnedProcess dialer_;
};

TEST_F(DialTest, CarriesBytesUntilTheJobEnds) {
  start_dialer();
  const std::unique_ptr<Guest> guest = welcome("new");
  ASSERT_NE(guest, nullptr);
  expect_echo(*guest, "hello\n");
  expect_echo(*guest, std::string(200'000, 'x') + "\n");
  // The launcher closes its side: the supervisor sees a half-close and the job finishes.
  guest->hang_up();
  stop_listening();
  EXPECT_EQ(wait_exit(dialer_).code, 0);
  EXPECT_FALSE(find_job_directory(job_id_, kHost).ok());
}

TEST_F(DialTest, ReplacesAKilledTransport) {
  start_dialer();
  std::unique_ptr<Guest> guest = welcome("new");
  ASSERT_NE(guest, nullptr);
  expect_echo(*guest, "hello\n");
  pid_t transport = 0;
  for (const pid_t child : children_of(dialer_.pid))
    if (name_of(child) == "ivy-dial") transport = child;
  ASSERT_GT(transport, 0);
  kill(transport, SIGKILL);
  std::unique_ptr<Guest> next = welcome("reattach");
  ASSERT_NE(next, nullptr);
  expect_echo(*next, "again\n");
  guest->hang_up();
  next->hang_up();
  stop_listening();
  EXPECT_EQ(wait_exit(dialer_).code, 0);
}

TEST_F(DialTest, ReportsSignalsThatOnlyItsTaskReceived) {
  start_dialer();
  const std::unique_ptr<Guest> guest = welcome("new");
  ASSERT_NE(guest, nullptr);
  expect_echo(*guest, "hello\n");
  kill(dialer_.pid, SIGUSR1);
  const std::unique_ptr<Guest> news = accept_guest();
  ASSERT_NE(news, nullptr);
  ASSERT_TRUE(news->do_handshake());
  EXPECT_EQ(news->read_line(), "IVYSIGNAL 1 1 10 tasks\n");
  for (const pid_t child : children_of(dialer_.pid)) kill(child, SIGTERM);
  kill(dialer_.pid, SIGTERM);
  const std::unique_ptr<Guest> more = accept_guest();
  ASSERT_NE(more, nullptr);
  ASSERT_TRUE(more->do_handshake());
  EXPECT_EQ(more->read_line(), "IVYSIGNAL 1 1 15 tree\n");
  // Neither signal has stopped the job.
  expect_echo(*guest, "still there\n");
  guest->hang_up();
  stop_listening();
  EXPECT_EQ(wait_exit(dialer_).code, 0);
}

TEST_F(DialTest, ReportsAnUnknownJob) {
  start_dialer();
  const std::unique_ptr<Guest> guest = welcome("reattach");
  ASSERT_NE(guest, nullptr);
  EXPECT_EQ(guest->read_line(), "\x01ivy:fail no-such-job\n");
  EXPECT_EQ(wait_exit(dialer_).code, kDialFailed);
}

TEST_F(DialTest, ReportsANodeThatIsNotAHostOfTheJob) {
  start_dialer("node7");
  EXPECT_EQ(wait_exit(dialer_).code, kDialFailed);
  EXPECT_EQ(read_text(errors_.reader(), ReadUntil::kEnd),
            "ivy-node: node7: this node is not one of the job's 2 hosts\n");
}

// The dialer keeps trying to reach the launcher, and sends nothing to the impostor.
TEST_F(DialTest, RejectsALauncherWithoutTheKey) {
  const std::unique_ptr<PskTls> right = std::move(tls_);
  tls_ = PskTls::make(PskTls::Side::kServer, job_id_, std::string(kDialKeyBytes, 'x')).value();
  start_dialer();
  {
    const std::unique_ptr<Guest> impostor = accept_guest();
    ASSERT_NE(impostor, nullptr);
    EXPECT_FALSE(impostor->do_handshake());
  }
  tls_ = PskTls::make(PskTls::Side::kServer, job_id_, kKey).value();
  const std::unique_ptr<Guest> guest = welcome("new");
  ASSERT_NE(guest, nullptr);
  expect_echo(*guest, "hello\n");
  guest->hang_up();
  stop_listening();
  EXPECT_EQ(wait_exit(dialer_).code, 0);
}

}  // namespace
}  // namespace ivy::test
