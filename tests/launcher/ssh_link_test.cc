// SPDX-License-Identifier: Apache-2.0
// Links by SSH against a real sshd on loopback.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "launcher/links/choice/transport.h"
#include "launcher/links/ssh/ssh_client_link.h"
#include "launcher/links/tcp_dial.h"
#include "proto/contract/build.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"
#include "tests/launcher/link_probe.h"
#include "tests/launcher/ssh_test_host.h"

namespace ivy {
namespace {

const std::string kJob(32, 'b');

// Collects the notes of a context, one a line.
struct NoteProbe final : TransportEvents {
  void transport_note(const RemoteText& text) override { notes += text.line() + "\n"; }
  void step_signalled(int, bool) override {}
  std::string notes;
};

class SshLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access("/usr/sbin/sshd", X_OK) != 0) GTEST_SKIP() << "sshd is not installed";
    options_.transport = TransportChoice::kSsh;
    host_.name = "127.0.0.1";
    remote_.make_bundle(kEchoNode);
  }
  void TearDown() override {
    link_.reset();
    context_.reset();
    if (HasFailure()) std::cerr << remote_.log();
  }
  std::unique_ptr<HostLink> make(LinkProbe& probe, int attempt = 0) {
    if (!context_)
      context_ =
          std::make_shared<TransportContext>(loop_, options_, NodeProgram{remote_.node_binary()});
    return make_link(context_, host_, probe, attempt);
  }
  // Opens a link and waits until it is up or down.
  void open(LinkProbe& probe, bool reattach = false, int attempt = 0) {
    link_ = make(probe, attempt);
    link_->open(OpenRequest{kJob, 5, reattach});
    EXPECT_FALSE(probe.up || probe.down) << "a handler was called from inside open()";
    EXPECT_TRUE(run_until(loop_, [&] { return probe.up || probe.down; })) << probe.event_text();
  }
  void expect_up(LinkProbe& probe, const std::string& transport) {
    ASSERT_TRUE(probe.up.has_value()) << probe.event_text();
    EXPECT_EQ(transport_name(probe.up->transport), transport);
    EXPECT_EQ(probe.up->peer_address, "127.0.0.1");
    EXPECT_EQ(probe.up->local_address, "127.0.0.1");
    EXPECT_EQ(probe.up->remote_command.find(kJob), std::string::npos);
    const std::string opened = "opened: IVYOPEN 1 new " + kJob + " 5\n";
    ASSERT_TRUE(run_until(loop_, [&] { return probe.bytes.size() >= opened.size(); }))
        << probe.event_text();
    EXPECT_EQ(probe.bytes, opened);
  }
  void expect_down(const LinkProbe& probe, LinkFailure failure, const std::string& message,
                   const std::string& fix) {
    ASSERT_TRUE(probe.down.has_value()) << probe.event_text();
    EXPECT_EQ(probe.down->failure, failure) << probe.event_text();
    EXPECT_NE(probe.down->message.find(message), std::string::npos) << probe.event_text();
    EXPECT_EQ(probe.down->message.find("\n"), std::string::npos) << probe.event_text();
    EXPECT_NE(probe.down->fix.find(fix), std::string::npos) << probe.event_text();
  }
  void expect_echo(LinkProbe& probe, std::size_t size) {
    probe.bytes.clear();
    std::string sent(size, '\0');
    for (std::size_t i = 0; i < size; ++i) sent[i] = static_cast<char>(i * 2654435761u >> 13);
    const int before = probe.drained;
    link_->write(sent);
    ASSERT_TRUE(run_until(loop_, [&] {
      return (probe.bytes.size() >= size && probe.drained > before) || probe.down;
    })) << probe.event_text();
    EXPECT_TRUE(probe.bytes == sent);
    EXPECT_EQ(probe.drained, before + 1);
  }

  // Makes the real supervisor behind link_ finish its job and waits until it has exited. Otherwise
  // it would wait for a launcher long after this test.
  void finish_real_job(const LinkProbe& probe) {
    session::Session session(64u << 10);
    session.link_up();
    session.send_handshake(
        session::FrameType::kAttach,
        session::encode_attach({kJob, std::string(32, 't'), std::string(build_name())}));
    ASSERT_TRUE(session.attached(0).ok());
    Command command;
    command.mutable_finish();
    ASSERT_TRUE(session.send(session::FrameType::kCommand, command.SerializeAsString()).ok());
    link_->write(session.take_bytes(0, SIZE_MAX));
    EXPECT_TRUE(run_until(loop_, [&] { return probe.down && !job_runs(); })) << probe.event_text();
    link_.reset();
  }
  // Returns true if a warden or supervisor of kJob runs.
  static bool job_runs() {
    for (const auto& entry : std::filesystem::directory_iterator("/proc"))
      if (read_file(entry.path() / "cmdline").find(std::string("--job\0", 6) + kJob) !=
          std::string::npos)
        return true;
    return false;
  }

  SshTestHost remote_;
  Options options_;
  Host host_;
  boost::asio::io_context loop_;
  std::shared_ptr<TransportContext> context_;
  std::unique_ptr<HostLink> link_;
};

TEST_F(SshLinkTest, SendsTheBundleOnceAndCarriesBytes) {
  ASSERT_TRUE(remote_.start());
  LinkProbe first;
  open(first);
  expect_up(first, "ssh");
  EXPECT_TRUE(first.printed("sending ivy-node")) << first.event_text();
  expect_echo(first, 5 << 20);
  LinkProbe second;
  open(second);
  expect_up(second, "ssh");
  EXPECT_FALSE(second.printed("sending ivy-node")) << second.event_text();
  EXPECT_EQ(remote_.bundles_in_home(), 1);
}

TEST_F(SshLinkTest, SupportsManyHostsWithOneHomeDirectory) {
  ASSERT_TRUE(remote_.start({"", "", "MaxStartups 100\nMaxSessions 100"}));
  std::vector<LinkProbe> probes(16);
  std::vector<std::unique_ptr<HostLink>> links;
  for (LinkProbe& probe : probes) {
    links.push_back(make(probe));
    links.back()->open(OpenRequest{kJob, 5, false});
  }
  for (LinkProbe& probe : probes) {
    EXPECT_TRUE(run_until(loop_, [&] { return !probe.bytes.empty() || probe.down; }));
    EXPECT_TRUE(probe.up.has_value()) << probe.event_text();
  }
  EXPECT_EQ(remote_.bundles_in_home(), 1);
}

TEST_F(SshLinkTest, ServesMoreHostsThanSlots) {
  ASSERT_TRUE(remote_.start({"", "", "MaxStartups 100"}));
  options_.fanout = 2;
  std::vector<LinkProbe> probes(7);
  std::vector<std::unique_ptr<HostLink>> links;
  for (LinkProbe& probe : probes) {
    links.push_back(make(probe));
    links.back()->open(OpenRequest{kJob, 5, false});
  }
  for (LinkProbe& probe : probes) {
    EXPECT_TRUE(run_until(loop_, [&] { return probe.up || probe.down; }));
    EXPECT_TRUE(probe.up.has_value()) << probe.event_text();
  }
}

TEST_F(SshLinkTest, SkipsNoiseOfTheLoginShell) {
  std::ofstream(remote_.home() / ".bashrc")
      << "echo Welcome to $HOME; echo trouble >&2; printf half\n";
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_up(probe, "ssh");
}

TEST_F(SshLinkTest, QuotesTheOutputOfAShellThatExits) {
  std::ofstream(remote_.home() / ".bashrc") << "echo 'This account is closed.'; exit 1\n";
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  if (probe.up) GTEST_SKIP() << "the login shell does not read .bashrc";
  expect_down(probe, LinkFailure::kBootstrap, "This account is closed.", "ssh");
}

TEST_F(SshLinkTest, SkipsAHomeThatForbidsPrograms) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  if (!remote_.covers_tmp())
    GTEST_SKIP() << "the files of this test lie below /tmp, where others would find the program";
  ASSERT_TRUE(remote_.start({"noexec", "", ""}));
  LinkProbe probe;
  open(probe);
  expect_up(probe, "ssh");
  LinkProbe again;
  open(again);
  expect_up(again, "ssh");
  EXPECT_FALSE(again.printed("sending ivy-node")) << again.event_text();
}

TEST_F(SshLinkTest, SkipsAFullHome) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  if (!remote_.covers_tmp())
    GTEST_SKIP() << "the files of this test lie below /tmp, where others would find the program";
  remote_.make_bundle(kEchoNode + std::string(3 << 20, '#') + "\n");
  ASSERT_TRUE(remote_.start({"size=1m", "", ""}));
  LinkProbe probe;
  open(probe);
  expect_up(probe, "ssh");
}

TEST_F(SshLinkTest, ReportsThatNoDirectoryHasRoom) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  if (!remote_.covers_tmp())
    GTEST_SKIP() << "the files of this test lie below /tmp, which has room";
  remote_.make_bundle(kEchoNode + std::string(3 << 20, '#') + "\n");
  ASSERT_TRUE(remote_.start({"noexec", "size=1m", ""}));
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kBootstrap, "No space left on device", "XDG_CACHE_HOME");
  expect_down(probe, LinkFailure::kBootstrap, "programs may not run there", "127.0.0.1");
}

TEST_F(SshLinkTest, StopsAtAnUnknownHostKeyWithTheCommandThatHelps) {
  remote_.write_known_hosts("");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kHostKey, "unknown host key: ED25519 SHA256:", "127.0.0.1 true");
}

TEST_F(SshLinkTest, ShowsBothFingerprintsOfAChangedHostKey) {
  shell("ssh-keygen -q -t ed25519 -N '' -f " + (remote_.root() / "other_key").string());
  remote_.write_known_hosts("[127.0.0.1]:" + std::to_string(remote_.port()) + " " +
                            read_file(remote_.root() / "other_key.pub"));
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kHostKey,
              "known_hosts has ED25519 SHA256:", "ssh-keygen -R '[127.0.0.1]:");
  expect_down(probe, LinkFailure::kHostKey, "presented ED25519 SHA256:", "");
}

TEST_F(SshLinkTest, RejectsAHostKeyOfAnotherType) {
  shell("ssh-keygen -q -t ecdsa -N '' -f " + (remote_.root() / "other_key").string());
  remote_.write_known_hosts("[127.0.0.1]:" + std::to_string(remote_.port()) + " " +
                            read_file(remote_.root() / "other_key.pub"));
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kHostKey, "the host key has changed", "ssh-keygen -R");
}

TEST_F(SshLinkTest, FallsBackToTheClientAfterAWrongKey) {
  shell("cd " + remote_.root().string() +
        " && ssh-keygen -q -t ed25519 -N '' -f wrong_key && "
        "mv wrong_key user_key");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  EXPECT_TRUE(probe.printed("trying the OpenSSH client")) << probe.event_text();
  expect_down(probe, LinkFailure::kAuthentication, "Permission denied (publickey",
              "ssh -o BatchMode=yes -F");
}

TEST_F(SshLinkTest, UsesTheClientForItsSpecialOptions) {
  // A certificate for the key: the server trusts the authority, but not the key.
  ASSERT_TRUE(
      shell("cd " + remote_.root().string() +
            " && ssh-keygen -q -t ed25519 -N '' -f ca && ssh-keygen -q -s ca -I test -n root,"
            "${USER:-root} user_key.pub"));
  ASSERT_TRUE(remote_.start(
      {"", "",
       "TrustedUserCAKeys " + (remote_.root() / "ca.pub").string() + "\nAuthorizedKeysFile none"}));
  // sshd_config uses the first value of an option, so the file is emptied instead.
  std::ofstream(remote_.root() / "user_key.pub.kept") << read_file(remote_.root() / "user_key.pub");
  std::ofstream(remote_.root() / "user_key.pub") << "";
  LinkProbe probe;
  open(probe);
  expect_up(probe, "OpenSSH client");
  EXPECT_TRUE(probe.printed("no key was accepted")) << probe.event_text();
  // The next link does not try libssh again.
  LinkProbe again;
  open(again);
  expect_up(again, "OpenSSH client");
  EXPECT_FALSE(again.printed("no key was accepted")) << again.event_text();
}

TEST_F(SshLinkTest, UsesTheClientIfTheConfigurationRequiresIt) {
  remote_.write_config("IdentitiesOnly yes");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_up(probe, "OpenSSH client");
  EXPECT_TRUE(probe.printed("sending ivy-node")) << probe.event_text();
  expect_echo(probe, 3 << 20);
}

// sshd hangs up after six keys.
TEST_F(SshLinkTest, OffersTheConfiguredKeyBeforeTheAgentsKeys) {
  SshTestAgent agent(remote_.root());
  ASSERT_TRUE(agent.add_foreign_keys(7));
  ASSERT_TRUE(agent.add(remote_.root() / "user_key"));
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_up(probe, "ssh");
}

TEST_F(SshLinkTest, HandsOverToTheClientIfTheServerTakesNoMoreKeys) {
  SshTestAgent agent(remote_.root());
  ASSERT_TRUE(agent.add_foreign_keys(7));
  ASSERT_TRUE(agent.add(remote_.root() / "user_key"));
  // Only the public half is left: the client offers the agent's copy of this key first.
  std::filesystem::remove(remote_.root() / "user_key");
  ASSERT_TRUE(remote_.start());
  const std::clock_t begin = std::clock();
  LinkProbe probe;
  open(probe);
  expect_up(probe, "OpenSSH client");
  EXPECT_TRUE(probe.printed("the server accepted no more authentication attempts"))
      << probe.event_text();
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC) << "a busy loop";
}

TEST_F(SshLinkTest, ReportsThatTheServerAcceptedNoMoreKeys) {
  SshTestAgent agent(remote_.root());
  ASSERT_TRUE(agent.add_foreign_keys(7));
  std::filesystem::remove(remote_.root() / "user_key");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kAuthentication, "Too many authentication failures",
              "IdentityFile");
}

TEST_F(SshLinkTest, RunsItsOwnCommandInSpiteOfRemoteCommand) {
  ASSERT_TRUE(remote_.start());
  for (const char* also : {"", "IdentitiesOnly yes\n"}) {
    remote_.write_config(std::string(also) +
                         "RemoteCommand tmux\nSessionType none\nStdinNull yes\n"
                         "ForkAfterAuthentication yes\nRequestTTY force\n");
    LinkProbe probe;
    open(probe);
    expect_up(probe, *also == '\0' ? "ssh" : "OpenSSH client");
    context_.reset();
  }
}

TEST_F(SshLinkTest, RunsItsOwnCommandByAnSshCommandInSpiteOfRemoteCommand) {
  remote_.write_config("RemoteCommand tmux\n");
  options_.ssh_command = {"ssh", "-F", (remote_.root() / "ssh_config").string()};
  unsetenv("IVY_SSH_CONFIG");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_up(probe, "OpenSSH client");
}

// As with conda or a vendor's image: the system's ssh cannot start with the libraries in these
// variables.
TEST_F(SshLinkTest, StartsSshWithoutTheUsersLibraries) {
  ASSERT_TRUE(remote_.start());
  std::filesystem::create_directory(remote_.root() / "bad");
  std::ofstream(remote_.root() / "bad/libcrypto.so.3") << "";
  for (const char* also : {"", "IdentitiesOnly yes\n"}) {
    remote_.write_config(also);
    LinkProbe probe;
    setenv("LD_LIBRARY_PATH", (remote_.root() / "bad").c_str(), 1);
    open(probe);
    unsetenv("LD_LIBRARY_PATH");
    expect_up(probe, *also == '\0' ? "ssh" : "OpenSSH client");
    context_.reset();
  }
}

// libssh does not support these lines and would accept a key that the site has revoked.
TEST_F(SshLinkTest, UsesTheClientForARevokedKey) {
  remote_.write_known_hosts(
      remote_.known_hosts_line() + "\n  @revoked * " +
      remote_.known_hosts_line().substr(remote_.known_hosts_line().find(' ') + 1));
  ASSERT_TRUE(remote_.start());
  NoteProbe noted;
  context_ =
      std::make_shared<TransportContext>(loop_, options_, NodeProgram{remote_.node_binary()});
  context_->set_events(noted);
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kHostKey, "", "");
  EXPECT_NE(noted.notes.find(
                "using the OpenSSH client because of the @cert-authority or @revoked lines in"),
            std::string::npos)
      << noted.notes;
}

TEST_F(SshLinkTest, ReportsTooFewDescriptors) {
  ASSERT_TRUE(remote_.start());
  rlimit saved{};
  getrlimit(RLIMIT_NOFILE, &saved);
  // The loop has its own descriptors open.
  LinkProbe first;
  open(first);
  link_.reset();
  const int next = dup(2);
  ::close(next);
  int failures = 0;
  for (int more = 1; more < 40; ++more) {
    LinkProbe probe;
    link_ = make(probe);
    const rlimit small{static_cast<rlim_t>(next + more), saved.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
    EXPECT_NO_THROW({
      link_->open(OpenRequest{kJob, 5, false});
      EXPECT_TRUE(run_until(loop_, [&] { return probe.up || probe.down; })) << probe.event_text();
    }) << more;
    setrlimit(RLIMIT_NOFILE, &saved);
    failures += probe.down ? 1 : 0;
    const bool is_up = probe.up.has_value();
    link_.reset();
    if (is_up) break;
  }
  EXPECT_GT(failures, 0);
}

TEST_F(SshLinkTest, UsesAnSshCommandAsGiven) {
  options_.ssh_command = {"ssh", "-F", (remote_.root() / "ssh_config").string()};
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_up(probe, "OpenSSH client");
}

TEST_F(SshLinkTest, NamesAMissingSshCommand) {
  options_.ssh_command = {"no-such-ssh-program"};
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kBootstrap, "start no-such-ssh-program: No such file",
              "--ssh-command");
}

TEST_F(SshLinkTest, NamesAChangedHostKeyWithTheClient) {
  remote_.write_config("IdentitiesOnly yes\nStrictHostKeyChecking yes");
  remote_.write_known_hosts("");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kHostKey, "Host key verification failed", "ssh");
}

TEST_F(SshLinkTest, NamesARejectedConnection) {
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kRefused,
              "127.0.0.1 port " + std::to_string(remote_.port()) + ": Connection refused", "sshd");
  EXPECT_TRUE(probe.printed("trying again")) << probe.event_text();
}

TEST_F(SshLinkTest, DoesNotRetryARedial) {
  LinkProbe probe;
  open(probe, true, 1);
  expect_down(probe, LinkFailure::kRefused, "Connection refused", "");
  EXPECT_FALSE(probe.printed("trying again")) << probe.event_text();
}

TEST_F(SshLinkTest, NamesAnUnknownHost) {
  host_.name = "no-such-host.invalid";
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kUnresolved, "no-such-host.invalid", "getent hosts");
}

TEST_F(SshLinkTest, StartsNothingWhenReattachingToAnUnknownJob) {
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe, true, 1);
  expect_down(probe, LinkFailure::kNoSuchJob, "", "");
  EXPECT_EQ(remote_.bundles_in_home(), 0);
}

TEST_F(SshLinkTest, ReportsAMissingJobWhenReattaching) {
  remote_.make_bundle(
      "#!/bin/sh\ncase $1 in --version) ;; relay) read -r line; case $line in *reattach*) "
      "printf '\\001ivy:fail no-such-job\\n'; exit 3;; esac; printf 'opened: %s\\n' \"$line\"; "
      "exec cat;; esac\n");
  ASSERT_TRUE(remote_.start());
  LinkProbe first;
  open(first);
  expect_up(first, "ssh");
  LinkProbe probe;
  open(probe, true, 1);
  ASSERT_TRUE(run_until(loop_, [&] { return probe.down.has_value(); })) << probe.event_text();
  EXPECT_EQ(probe.down->failure, LinkFailure::kNoSuchJob);
}

#ifdef IVY_TEST_NODE
// The real ivy-node and its real bundle: the bundle is installed, and the relay does not know this
// job.
TEST_F(SshLinkTest, ReportsAMissingJobWithTheRealRelay) {
  ASSERT_TRUE(remote_.start());
  for (const bool installed : {false, true}) {
    context_ = std::make_shared<TransportContext>(loop_, options_, NodeProgram{IVY_TEST_NODE});
    if (!installed) {
      // Only a new job installs the bundle.
      LinkProbe installer;
      open(installer);
      ASSERT_TRUE(installer.up.has_value()) << installer.event_text();
      EXPECT_TRUE(installer.printed("sending ivy-node")) << installer.event_text();
      finish_real_job(installer);
      continue;
    }
    LinkProbe probe;
    host_.name = "127.0.0.1";
    link_ = make(probe, 1);
    link_->open(OpenRequest{std::string(32, 'd'), 5, true});
    ASSERT_TRUE(run_until(loop_, [&] { return probe.down.has_value(); })) << probe.event_text();
    EXPECT_EQ(probe.down->failure, LinkFailure::kNoSuchJob) << probe.event_text();
  }
}
#endif

TEST_F(SshLinkTest, ReportsTheEndOfTheRelayAsBroken) {
  remote_.make_bundle("#!/bin/sh\ncase $1 in relay) read -r line; echo oops >&2; exit 4;; esac\n");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  ASSERT_TRUE(run_until(loop_, [&] { return probe.down.has_value(); })) << probe.event_text();
  expect_down(probe, LinkFailure::kBroken, "oops (exit status 4)", "");
}

TEST_F(SshLinkTest, EndsTheRelayWhenItCloses) {
  const std::string mark = remote_.home() / "ended";
  remote_.make_bundle("#!/bin/sh\ncase $1 in relay) read -r line; cat >/dev/null; : > " + mark +
                      ";; esac\n");
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  open(probe);
  ASSERT_TRUE(probe.up.has_value()) << probe.event_text();
  link_.reset();
  EXPECT_TRUE(run_until(loop_, [&] { return std::filesystem::exists(mark); }));
  EXPECT_FALSE(probe.down.has_value());
}

// An sshd that hangs up on every client before its banner, as above MaxStartups.
TEST_F(SshLinkTest, TriesAServerThatHangsUpFiveTimes) {
  using tcp = boost::asio::ip::tcp;
  tcp::acceptor listener(loop_,
                         tcp::endpoint(boost::asio::ip::address_v4::loopback(), remote_.port()));
  int visitors = 0;
  std::function<void()> welcome = [&] {
    listener.async_accept([&](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      ++visitors;
      socket.close();
      welcome();
    });
  };
  welcome();
  LinkProbe probe;
  open(probe);
  expect_down(probe, LinkFailure::kRefused, "closed the connection before", "MaxStartups");
  // The more frequent cause comes first.
  EXPECT_TRUE(probe.down->fix.starts_with("is it an SSH server")) << probe.event_text();
  EXPECT_EQ(visitors, 5);
}

// Accepts connections and sends nothing, like an agent forwarded from a sleeping laptop.
class SilentAgent {
 public:
  explicit SilentAgent(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
    listen(fd_, 16);
    setenv("SSH_AUTH_SOCK", path.c_str(), 1);
  }
  ~SilentAgent() {
    unsetenv("SSH_AUTH_SOCK");
    close(fd_);
  }

 private:
  int fd_ = -1;
};

// Measures the longest time between two iterations of the loop.
class LoopWatch {
 public:
  explicit LoopWatch(boost::asio::io_context& loop) : timer_(loop) { tick(); }
  std::chrono::milliseconds longest() const { return longest_; }

 private:
  void tick() {
    const auto now = std::chrono::steady_clock::now();
    if (last_ != std::chrono::steady_clock::time_point())
      longest_ =
          std::max(longest_, std::chrono::duration_cast<std::chrono::milliseconds>(now - last_));
    last_ = now;
    timer_.expires_after(std::chrono::milliseconds(20));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point last_;
  std::chrono::milliseconds longest_{0};
};

TEST_F(SshLinkTest, BlocksNeitherTheLoopNorTheLoginOnASilentAgent) {
  const SilentAgent agent(remote_.root() / "agent");
  // The wrong key is first, then the agent; the client has the right key.
  shell("cd " + remote_.root().string() + " && ssh-keygen -q -t ed25519 -N '' -f wrong_key");
  std::ofstream(remote_.root() / "ssh_config", std::ios::app)
      << "  IdentityFile " << (remote_.root() / "wrong_key").string() << "\n";
  NoteProbe noted;
  ASSERT_TRUE(remote_.start());
  context_ =
      std::make_shared<TransportContext>(loop_, options_, NodeProgram{remote_.node_binary()});
  context_->set_events(noted);
  LoopWatch watch(loop_);
  // The right key is tried first, so the agent is not needed.
  LinkProbe by_key;
  open(by_key);
  expect_up(by_key, "ssh");
  EXPECT_FALSE(by_key.printed("SSH agent")) << by_key.event_text();
  link_.reset();
  // The server accepts no key from a file, so only the agent's keys are left.
  std::filesystem::rename(remote_.root() / "user_key.pub", remote_.root() / "hidden.pub");
  LinkProbe by_agent;
  link_ = make(by_agent, 0);
  link_->open(OpenRequest{kJob, 5, false});
  ASSERT_TRUE(run_until(
      loop_, [&] { return by_agent.up || by_agent.down; }, std::chrono::seconds(40)))
      << by_agent.event_text();
  const std::string name = "the SSH agent at " + (remote_.root() / "agent").string();
  EXPECT_TRUE(by_agent.printed("waiting for " + name)) << by_agent.event_text();
  expect_down(by_agent, LinkFailure::kAuthentication, name + " did not answer for 10 s",
              "ssh-add -l");
  EXPECT_TRUE(noted.notes.starts_with("note: 127.0.0.1 waits for " + name + ", 4 s\n"))
      << noted.notes;
  EXPECT_LT(watch.longest(), test::scaled_time(std::chrono::seconds(2)));
}

TEST_F(SshLinkTest, NamesAControlMasterThatHangs) {
  // The socket of a stopped master accepts and sends nothing, like this one.
  const std::string path = remote_.root() / "master";
  const SilentAgent master(path);
  unsetenv("SSH_AUTH_SOCK");
  remote_.write_config("ControlPath " + path);
  options_.ssh_command = {"ssh"};
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  link_ = make(probe);
  link_->open(OpenRequest{kJob, 5, false});
  EXPECT_TRUE(run_until(loop_, [&] {
    return probe.up || probe.printed("ControlMaster at " + path);
  })) << probe.event_text();
  EXPECT_FALSE(probe.up.has_value()) << probe.event_text();
}

TEST_F(SshLinkTest, InvokesNoCallbackAfterCloseDuringASilentAgent) {
  const SilentAgent agent(remote_.root() / "agent");
  ASSERT_TRUE(remote_.start());
  std::filesystem::rename(remote_.root() / "user_key.pub", remote_.root() / "hidden.pub");
  LinkProbe probe;
  link_ = make(probe);
  link_->open(OpenRequest{kJob, 5, false});
  ASSERT_TRUE(run_until(loop_, [&] { return probe.printed("waiting for the SSH agent"); }))
      << probe.event_text();
  link_.reset();
  context_.reset();
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(probe.up || probe.down) << probe.event_text();
}

// The home may be on a file system that stalls together with the network.
TEST_F(SshLinkTest, ReadsNoFilesOnARedial) {
  ASSERT_TRUE(remote_.start());
  LinkProbe first;
  open(first);
  expect_up(first, "ssh");
  link_.reset();
  for (const char* name : {"known_hosts", "user_key", "ssh_config"})
    std::filesystem::remove(remote_.root() / name);
  shell("mkfifo " + (remote_.root() / "known_hosts").string() + " " +
        (remote_.root() / "user_key").string() + " " + (remote_.root() / "ssh_config").string());
  LinkProbe again;
  open(again, false, 1);
  expect_up(again, "ssh");
}

TEST_F(SshLinkTest, RejectsAnotherHostKeyOnARedial) {
  ASSERT_TRUE(remote_.start());
  LinkProbe first;
  open(first);
  expect_up(first, "ssh");
  link_.reset();
  ASSERT_TRUE(remote_.restart_with_another_key());
  LinkProbe again;
  open(again, true, 1);
  expect_down(again, LinkFailure::kHostKey, "has changed since this job's first login",
              "another machine");
}

TEST_F(SshLinkTest, ResendsADamagedBundle) {
  ASSERT_TRUE(remote_.start());
  LinkProbe first;
  open(first);
  expect_up(first, "ssh");
  link_.reset();
  // Truncated, as after a full disk.
  shell("for f in " + remote_.home().string() +
        "/.cache/ivyrun/*/ivy-node; do truncate -s 20 $f; done");
  LinkProbe cut;
  open(cut);
  expect_up(cut, "ssh");
  EXPECT_TRUE(cut.printed("ivy-node is damaged on the host")) << cut.event_text();
  EXPECT_TRUE(cut.printed("sending ivy-node")) << cut.event_text();
  link_.reset();
  // The right size but wrong content, as after a power failure: only running it shows the damage.
  shell("for f in " + remote_.home().string() +
        "/.cache/ivyrun/*/ivy-node; do n=$(wc -c < $f); { printf '#!/bin/sh\nexit 9\n'; "
        "head -c $n /dev/zero; } | head -c $n > $f.new; chmod 700 $f.new; mv $f.new $f; done");
  LinkProbe wrong;
  open(wrong);
  ASSERT_TRUE(run_until(loop_, [&] { return wrong.down.has_value(); })) << wrong.event_text();
  expect_down(wrong, LinkFailure::kBroken, "exited without any output", ".cache/ivyrun");
  LinkProbe repaired;
  open(repaired, false, 1);
  expect_up(repaired, "ssh");
  EXPECT_TRUE(repaired.printed("sending ivy-node")) << repaired.event_text();
}

TEST_F(SshLinkTest, NamesAShellThatStartsSomethingElse) {
  std::ofstream(remote_.home() / ".bashrc") << "exec sleep 20\n";
  ASSERT_TRUE(remote_.start());
  LinkProbe probe;
  link_ = make(probe);
  link_->open(OpenRequest{kJob, 5, false});
  EXPECT_TRUE(run_until(loop_, [&] {
    return probe.up || probe.down || probe.printed("login shell");
  })) << probe.event_text();
  if (probe.up) GTEST_SKIP() << "the login shell does not read .bashrc";
  EXPECT_TRUE(probe.printed("the login shell there has not started ivyrun's command yet"))
      << probe.event_text();
}

// OpenSSH 9.8 and later rejects an address for a while after failed logins.
TEST_F(SshLinkTest, ReportsAPenalty) {
  using tcp = boost::asio::ip::tcp;
  tcp::acceptor listener(loop_,
                         tcp::endpoint(boost::asio::ip::address_v4::loopback(), remote_.port()));
  listener.async_accept([](const boost::system::error_code& error, tcp::socket socket) {
    if (!error) boost::asio::write(socket, boost::asio::buffer("Not allowed at this time\r\n", 26));
  });
  LinkProbe probe;
  open(probe, false, 1);
  expect_down(probe, LinkFailure::kRefused, "Not allowed at this time", "PerSourcePenalty");
}

TEST_F(SshLinkTest, InvokesNoCallbackAfterClose) {
  ASSERT_TRUE(remote_.start());
  for (int turns = 0; turns < 60; turns += 3) {
    LinkProbe probe;
    link_ = make(probe);
    link_->open(OpenRequest{kJob, 5, false});
    loop_.restart();
    for (int i = 0; i < turns; ++i) loop_.run_one_for(std::chrono::milliseconds(20));
    const bool was_up = probe.up.has_value();
    link_.reset();
    loop_.restart();
    loop_.run_for(std::chrono::milliseconds(3));
    EXPECT_EQ(probe.up.has_value(), was_up);
    EXPECT_FALSE(probe.down.has_value()) << probe.event_text();
  }
}

TEST(SshClientCommand, DisablesForwardings) {
  Host host;
  host.name = "node1";
  const std::vector<std::string> words = ssh_client_command({}, host, {}, "", "true");
  for (const char* word : {"ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"})
    EXPECT_NE(std::find(words.begin(), words.end(), word), words.end()) << word;
}

// A listening socket whose queue is full drops new connections silently, like a firewall.
TEST(TcpDial, ReportsSilenceAsUnreachable) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 0), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<int> visitors;
  for (int i = 0; i < 4; ++i) {
    visitors.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)!connect(visitors.back(), reinterpret_cast<sockaddr*>(&address), size);
  }
  boost::asio::io_context loop;
  boost::asio::thread_pool resolvers(1);
  Sequence sequence(loop);
  std::optional<LinkDown> down;
  const auto dial = [&]() -> Awaitable<void> {
    const DialLimits limits{.connect = std::chrono::milliseconds(200), .connect_of_many = {}};
    const Dialled dialled =
        co_await dial_tcp(sequence, resolvers, "127.0.0.1", ntohs(address.sin_port), limits);
    down = dialled.failed;
  };
  sequence.start(dial());
  ASSERT_TRUE(run_until(loop, [&] { return down.has_value(); }));
  EXPECT_EQ(down->failure, LinkFailure::kUnreachable);
  EXPECT_NE(down->message.find("no answer"), std::string::npos) << down->message;
  for (const int fd : visitors) close(fd);
  close(listener);
}

}  // namespace
}  // namespace ivy
