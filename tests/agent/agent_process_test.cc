// SPDX-License-Identifier: Apache-2.0
// The real ivy-agent as a process: readiness, watchdog, signals, and too few descriptors. ivy-agent
// rejects root, so a test that runs as root starts it as another user.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <map>
#include <vector>

#include "tests/agent/agent_front_fixture.h"
#include "tests/agent/agent_hello.h"

namespace ivy::test {
namespace {

using namespace std::chrono_literals;

constexpr uid_t kOtherUser = 65534;

// The service manager's end of sd_notify(3).
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : descriptor_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    chmod(path.c_str(), 0666);
  }
  ~NotifySocket() { close(descriptor_); }
  // Collects messages until one contains this assignment; returns "" if none does in time.
  std::string wait_for(const std::string& part, std::chrono::milliseconds deadline = 5s) {
    std::string all;
    const bool came = eventually(
        [&] {
          std::string message(4096, '\0');
          const ssize_t count = recv(descriptor_, message.data(), message.size(), MSG_DONTWAIT);
          if (count <= 0) return false;
          all += message.substr(0, static_cast<std::size_t>(count)) + "\n";
          return all.find(part) != std::string::npos;
        },
        deadline);
    return came ? all : std::string();
  }

 private:
  int descriptor_;
};

class AgentProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const TemporaryDirectory* directory : {&home_, &sockets_, &certificates_})
      chmod(directory->path().c_str(), 0700);
    const KeyAndCertificate host = authority_.host();
    certificates_.write("ca.crt", authority_.certificate());
    certificates_.write("host.crt", host.certificate_pem);
    certificates_.write("host.key", host.key_pem);
    environment_ = {{"HOME", home_.path()}, {"PATH", "/usr/bin:/bin"}};
    port_ = free_port();
    arguments_ = {"serve",
                  "--socket",
                  socket_path(),
                  "--state",
                  home_ / "state",
                  "--certificates",
                  certificates_.path(),
                  "--user-name",
                  "alice",
                  "--listen",
                  "127.0.0.1:" + std::to_string(port_)};
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (HasFailure()) std::fputs(log().c_str(), stderr);
  }

  std::string socket_path() const { return sockets_ / "agent.sock"; }
  std::string log() const {
    std::ifstream file(home_ / "log");
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  bool eventually_contains(const std::string& part) const {
    return eventually([&] { return log().find(part) != std::string::npos; });
  }

  static std::uint16_t free_port() {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address);
    getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
    close(descriptor);
    return ntohs(address.sin_port);
  }

  void start(bool as_root = false) {
    const bool other = geteuid() == 0 && !as_root;
    if (other)
      for (const TemporaryDirectory* directory : {&home_, &sockets_, &certificates_})
        give_away(directory->path());
    std::vector<std::string> words{IVY_AGENT_BINARY};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment_) variables.push_back(name + "=" + value);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> result;
      for (std::string& text : texts) result.push_back(text.data());
      result.push_back(nullptr);
      return result;
    };
    std::vector<char*> argv = pointers(words);
    std::vector<char*> envp = pointers(variables);
    const std::string log_path = home_ / "log";
    pid_ = fork();
    ASSERT_GE(pid_, 0);
    if (pid_ > 0) return;
    const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (descriptor_limit_ != 0) {
      const rlimit limit{descriptor_limit_, descriptor_limit_};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (other && (setgid(kOtherUser) != 0 || setuid(kOtherUser) != 0)) _exit(99);
    execve(argv[0], argv.data(), envp.data());
    _exit(98);
  }
  // Returns the exit code, or 128 + signal, or -1 if the agent does not exit in time.
  int wait_for_end(std::chrono::milliseconds deadline = 5s) {
    int status = 0;
    if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, deadline)) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  grpc::Status ask() const {
    const KeyAndCertificate alice = authority_.user("alice");
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_private_key = alice.key_pem;
    options.pem_cert_chain = alice.certificate_pem;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_),
                                                   grpc::SslCredentials(options), arguments);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + scaled_time(2s));
    agent::v1::FactsReply reply;
    return agent::v1::Agent::NewStub(channel)->Facts(&context, {}, &reply);
  }
  int connect_raw() const {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      return descriptor;
    close(descriptor);
    return -1;
  }
  // User and system time of the agent, in milliseconds.
  std::int64_t cpu_ms() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text;
    std::getline(file, text);
    std::stringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    std::int64_t user = 0;
    std::int64_t system = 0;
    fields >> user >> system;
    return (user + system) * 1000 / sysconf(_SC_CLK_TCK);
  }

  TestAuthority authority_;
  TemporaryDirectory home_;
  TemporaryDirectory sockets_;
  TemporaryDirectory certificates_;
  std::map<std::string, std::string> environment_;
  std::vector<std::string> arguments_;
  std::uint16_t port_ = 0;
  rlim_t descriptor_limit_ = 0;
  pid_t pid_ = -1;

 private:
  static void give_away(const std::string& path) {
    ASSERT_EQ(chown(path.c_str(), kOtherUser, kOtherUser), 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
      ASSERT_EQ(lchown(entry.path().c_str(), kOtherUser, kOtherUser), 0);
  }
};

TEST_F(AgentProcessTest, NotifiesSystemdWhenReadyAndWhenStopping) {
  TemporaryDirectory notify_place;
  chmod(notify_place.path().c_str(), 0755);
  NotifySocket notify(notify_place / "notify");
  environment_["NOTIFY_SOCKET"] = notify_place / "notify";
  start();
  ASSERT_NE(notify.wait_for("READY=1"), "") << log();
  EXPECT_TRUE(ask().ok());
  kill(pid_, SIGTERM);
  EXPECT_NE(notify.wait_for("STOPPING=1"), "");
  EXPECT_EQ(wait_for_end(2s), 0);
  EXPECT_FALSE(std::filesystem::exists(socket_path()));
}

TEST_F(AgentProcessTest, FeedsTheWatchdogWhileItServes) {
  TemporaryDirectory notify_place;
  chmod(notify_place.path().c_str(), 0755);
  NotifySocket notify(notify_place / "notify");
  environment_["NOTIFY_SOCKET"] = notify_place / "notify";
  environment_["WATCHDOG_USEC"] = "600000";
  start();
  for (int i = 0; i < 5; ++i) ASSERT_NE(notify.wait_for("WATCHDOG=1", 2s), "") << i;
}

TEST_F(AgentProcessTest, WritesPrioritiesForTheJournal) {
  // journald's socket is recognized by device and inode, so a file will do.
  const std::string log_path = home_ / "log";
  std::ofstream(log_path) << "";
  struct stat status {};
  ASSERT_EQ(stat(log_path.c_str(), &status), 0);
  environment_["JOURNAL_STREAM"] =
      std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  start();
  EXPECT_TRUE(eventually_contains("<6>ready\n"));
}

TEST_F(AgentProcessTest, KeepsAMetricsFileThatPrometheusAccepts) {
  const std::string path = home_ / "agent.prom";
  arguments_.insert(arguments_.end(), {"--metrics-file", path});
  start();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path); }, 5s));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  for (const char* name : {"ivyrun_agent_jobs{", "ivyrun_agent_certificate_expiry_time_seconds{"})
    EXPECT_NE(text.str().find(name), std::string::npos) << text.str();
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0644));
  if (std::system("command -v promtool >/dev/null") != 0)
    GTEST_SKIP() << "promtool (Debian's package prometheus) is not installed";
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
}

TEST_F(AgentProcessTest, LogsAMetricsFileThatCannotBeWrittenOnce) {
  arguments_.insert(arguments_.end(), {"--metrics-file", home_ / "missing/agent.prom"});
  start();
  EXPECT_TRUE(
      eventually_contains("--metrics-file " + (home_ / "missing/agent.prom") + ": No such file"));
  EXPECT_TRUE(ask().ok());
}

TEST_F(AgentProcessTest, RejectsRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root is rejected";
  start(true);
  EXPECT_EQ(wait_for_end(), 2);
  EXPECT_TRUE(eventually_contains("cannot run as root"));
}

TEST_F(AgentProcessTest, WarnsOfACertificateThatServesAnyUser) {
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  EXPECT_TRUE(
      eventually_contains("is valid for any user: alice, and every program of that account"));
  EXPECT_TRUE(eventually_contains("--serves alice"));
}

TEST_F(AgentProcessTest, DoesNotWarnOfACertificateOfItsUser) {
  const KeyAndCertificate host = authority_.host("node1", 90, "alice");
  certificates_.write("host.crt", host.certificate_pem);
  certificates_.write("host.key", host.key_pem);
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  EXPECT_EQ(log().find("is valid for any user"), std::string::npos);
}

TEST_F(AgentProcessTest, NamesTheMissingCertificateFile) {
  std::filesystem::remove(certificates_ / "host.crt");
  start();
  EXPECT_EQ(wait_for_end(), 2);
  EXPECT_TRUE(eventually_contains("no certificate for this host"));
  EXPECT_TRUE(eventually_contains("ivy-agent cert HOST"));
}

TEST_F(AgentProcessTest, ReadsCertificatesAgainOnSighup) {
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  kill(pid_, SIGHUP);
  EXPECT_TRUE(eventually_contains("reloaded"));
  EXPECT_TRUE(ask().ok());
}

TEST_F(AgentProcessTest, StopsInTimeWhateverClientsDo) {
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect_raw());
  ASSERT_TRUE(ask().ok());
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait_for_end(2s), 0);
  for (const int descriptor : silent) close(descriptor);
}

TEST_F(AgentProcessTest, RecoversWhenDescriptorsRanOut) {
  descriptor_limit_ = 64;
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  // Half of them send nothing and are dropped at the limit of their address. The other half stop in
  // the middle of the handshake, which only gRPC can end.
  std::vector<int> clients;
  const std::int64_t before = cpu_ms();
  for (int i = 0; i < 500; ++i) {
    clients.push_back(connect_raw());
    ASSERT_GE(clients.back(), 0) << i;
    const std::string hello = client_hello();
    if (i % 2 == 0) (void)!send(clients.back(), hello.data(), hello.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(eventually_contains("too many descriptors are open"));
  // Not a wait for an event: it gives the acceptor time in which it could spin.
  std::this_thread::sleep_for(1s);
  EXPECT_LT(cpu_ms() - before, 500);
  for (const int descriptor : clients) close(descriptor);
  EXPECT_TRUE(eventually([this] { return ask().ok(); }, 1s)) << log();
}

TEST_F(AgentProcessTest, ServesThroughTwoThousandHalfOpenConnections) {
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  std::vector<int> clients;
  for (int i = 0; i < 2000; ++i) clients.push_back(connect_raw());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(ask().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_time(1s));
  EXPECT_TRUE(eventually_contains(
      "too many connections are not authenticated yet, and this was the oldest of them"));
  EXPECT_TRUE(eventually_contains("more lines about rejected connections were dropped"));
  for (const int descriptor : clients) close(descriptor);
}

TEST_F(AgentProcessTest, AnswersStatusAndDrain) {
  start();
  ASSERT_TRUE(eventually_contains("ready"));
  const auto run = [this](const std::string& words) {
    const std::string command =
        std::string(IVY_AGENT_BINARY) + " " + words + " --socket " + socket_path() + " 2>&1";
    std::FILE* const pipe = popen(command.c_str(), "r");
    std::string text(65536, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), pipe));
    const int status = pclose(pipe);
    return std::pair{WEXITSTATUS(status), text};
  };
  EXPECT_NE(run("status").second.find("accepts jobs yes"), std::string::npos)
      << run("status").second;
  const std::string object = run("status --json").second;
  EXPECT_TRUE(object.starts_with("{\"version\":\"")) << object;
  EXPECT_NE(object.find("\"draining\":false,\"jobs\":[]}\n"), std::string::npos) << object;
  EXPECT_EQ(run("drain").first, 0);
  EXPECT_NE(run("status").second.find("no (draining)"), std::string::npos);
  EXPECT_EQ(run("drain --wait 5").first, 0);
  EXPECT_EQ(run("drain --undo").first, 0);
  EXPECT_NE(run("status").second.find("accepts jobs yes"), std::string::npos);
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait_for_end(2s), 0);
  const auto [code, text] = run("status");
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("check that it is running"), std::string::npos) << text;
}

}  // namespace
}  // namespace ivy::test
