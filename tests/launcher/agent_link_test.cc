// SPDX-License-Identifier: Apache-2.0
// The agent transport, against an agent in this process that follows a script.
#include "launcher/links/agent/agent_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "launcher/links/agent/agent_client.h"
#include "launcher/links/agent/agent_request.h"
#include "launcher/links/choice/auto_link.h"
#include "launcher/links/choice/transport.h"
#include "proto/wire/message_size.h"
#include "tests/launcher/link_probe.h"
#include "tests/launcher/scripted_agent.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using test::ScriptedAgent;
using test::TestAuthority;

constexpr char kJob[] = "0123456789abcdef0123456789abcdef";

const TestAuthority& authority() {
  static const TestAuthority instance;
  return instance;
}

KeyAndCertificate good_host() {
  return authority().host("node1", {"node1"}, {"127.0.0.1", "0.0.0.0"});
}

// A TCP listener that is not an agent: sends a text, or nothing, and reads nothing.
class DumbListener {
 public:
  DumbListener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(fd_, reinterpret_cast<sockaddr*>(&address), size);
    listen(fd_, 8);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~DumbListener() {
    if (accepted_ >= 0) ::close(accepted_);
    if (fd_ >= 0) ::close(fd_);
  }
  DumbListener(const DumbListener&) = delete;
  DumbListener& operator=(const DumbListener&) = delete;
  std::uint16_t port() const { return port_; }
  void say(const std::string& text) {
    accepted_ = accept(fd_, nullptr, nullptr);
    EXPECT_EQ(::write(accepted_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void reject() {
    ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  int accepted_ = -1;
  std::uint16_t port_ = 0;
};

class AgentLinkTest : public testing::Test, private TransportEvents {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    directory_.write("bin/ivy-node", "#!/bin/sh\n");
    directory_.write("lib/ivyrun/bundle-test64.run",
                     std::string(1000, 'u') + std::string(200'000, 'b'));
    directory_.write("lib/ivyrun/bundle-test64.run.sha256",
                     std::string(64, 'c') + " " + std::string(64, 'a') + " 1000 201000\n");
    setenv("IVY_AGENT_SOCKET", "", 1);
    options_.command = {"train.py", "--lr", "3e-4"};
  }
  void TearDown() override {
    link_.reset();
    context_.reset();
    unsetenv("IVY_AGENT_SOCKET");
    unsetenv("IVY_AGENT_CONFIG");
  }

  void configure(const TestAuthority& trusted, const KeyAndCertificate& user, std::uint16_t port) {
    setenv("IVY_AGENT_CONFIG",
           test::write_user_files(directory_, "user", trusted, user, port).c_str(), 1);
  }
  void configure(std::uint16_t port) { configure(authority(), authority().user("alice"), port); }

  std::shared_ptr<TransportContext> context() {
    if (!context_) {
      context_ = std::make_shared<TransportContext>(
          loop_, options_, NodeProgram{directory_ / "bin/ivy-node"}, agent_link_maker());
      context_->set_events(*this);
    }
    return context_;
  }
  void transport_note(const RemoteText& text) override { notes_ += text.line() + "\n"; }
  void step_signalled(int, bool) override {}
  static Host host(const std::string& name = "127.0.0.1") {
    Host result;
    result.name = name;
    return result;
  }
  void open(AgentLink::Route route = AgentLink::Route::kDirect, bool reattach = false,
            milliseconds answer = kAgentAnswer, const Host& to = host()) {
    link_ = std::make_unique<AgentLink>(context(), to, route, answer, probe_);
    link_->open(OpenRequest{kJob, 7, reattach});
    EXPECT_FALSE(probe_.up || probe_.down) << "a handler was called from inside open()";
  }
  bool is_up() {
    return run_until(loop_, [&] { return probe_.up || probe_.down; }) && probe_.up.has_value();
  }
  LinkDown down() {
    EXPECT_TRUE(run_until(loop_, [&] { return probe_.down.has_value(); })) << probe_.event_text();
    return probe_.down.value_or(LinkDown{});
  }
  void expect_down(LinkFailure failure, const std::string& text) {
    const LinkDown got = down();
    EXPECT_EQ(static_cast<int>(got.failure), static_cast<int>(failure)) << got.message;
    EXPECT_NE(got.message.find(text), std::string::npos) << got.message;
    EXPECT_FALSE(probe_.up.has_value());
  }
  // Dials an agent with this certificate and expects the link to fail.
  void expect_rejected(const KeyAndCertificate& agents, const std::string& text) {
    ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
    agent.serve(authority(), agents);
    configure(agent.port());
    open();
    expect_down(LinkFailure::kAuthentication, text);
    EXPECT_TRUE(agent.opened().empty()) << "bytes left before the certificate was believed";
  }

  test::TestDirectory directory_;
  boost::asio::io_context loop_;
  Options options_;
  std::shared_ptr<TransportContext> context_;
  LinkProbe probe_;
  std::string notes_;
  std::unique_ptr<HostLink> link_;
};

TEST_F(AgentLinkTest, CarriesBytesInBothDirections) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  EXPECT_EQ(probe_.up->transport, Transport::kAgent);
  EXPECT_EQ(probe_.up->peer_address, "127.0.0.1");
  EXPECT_EQ(probe_.up->local_address, "127.0.0.1");
  std::string sent;
  for (int i = 0; i < 500'000; ++i) sent += std::to_string(i);
  link_->write(sent);
  ASSERT_TRUE(run_until(loop_, [&] {
    return probe_.bytes.size() == sent.size() && probe_.drained > 0;
  })) << probe_.event_text();
  EXPECT_EQ(probe_.bytes, sent);
  EXPECT_EQ(probe_.drained, 1);
  EXPECT_EQ(agent.largest_data(), session::MessageSize::kMax);
}

TEST_F(AgentLinkTest, SendsTheJobsDescriptionToTheAgent) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  for (int i = 0; i < 100; ++i) options_.hosts.push_back(host("h" + std::to_string(i)));
  open(AgentLink::Route::kDirect, true);
  ASSERT_TRUE(is_up()) << probe_.event_text();
  const agent::v1::OpenJob job = agent.opened().front();
  EXPECT_EQ(job.job_id(), kJob);
  EXPECT_EQ(job.host(), 7u);
  EXPECT_TRUE(job.reattach());
  EXPECT_EQ(job.bundle().size(), 24u);
  EXPECT_EQ(job.target(), "");
  EXPECT_EQ(job.job().hosts_size(), 64);
  EXPECT_EQ(job.job().host_count(), 100u);
  EXPECT_EQ(job.job().program(), "train.py");
  EXPECT_NE(job.job().user(), "");
  // printf 'train.py\0--lr\0003e-4\0' | sha256sum
  EXPECT_EQ(job.job().command_sha256(),
            "b3bb31e63f1008ed22235deaa26cefa95faf0cd8defcce8aa62c6d0bf4b213d8");
}

TEST_F(AgentLinkTest, HalfClosesAfterPendingWrites) {
  std::string received;
  ScriptedAgent agent([&](auto&, auto& stream) {
    ScriptedAgent::send_opened(stream);
    for (std::string bytes; agent.hear(stream, bytes);) received += bytes;
    return grpc::Status::OK;
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  link_->write(std::string(300'000, 'x'));
  link_->close();
  link_.reset();
  ASSERT_TRUE(run_until(loop_, [&] { return agent.half_closed() == 1; }));
  agent.stop();
  EXPECT_EQ(received.size(), 300'000u);
  EXPECT_FALSE(probe_.down.has_value());
}

TEST_F(AgentLinkTest, CancelsTheCallToAnAgentThatNeverReads) {
  std::atomic<bool> cancelled = false;
  ScriptedAgent agent([&](grpc::ServerContext& context, auto& stream) {
    ScriptedAgent::send_opened(stream);
    while (!context.IsCancelled()) usleep(10'000);
    cancelled = true;
    return grpc::Status::OK;
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  link_->write(std::string(64u << 20, 'x'));
  link_.reset();
  EXPECT_TRUE(run_until(
      loop_, [&] { return cancelled.load(); }, std::chrono::seconds(5)));
  EXPECT_EQ(probe_.drained, 0);
  EXPECT_FALSE(probe_.down.has_value());
}

// Every second Open finds the bundle missing, so that links are closed before, during and after a
// Put.
TEST_F(AgentLinkTest, ReportsNothingAfterItsEndInAnyState) {
  ScriptedAgent agent([&](grpc::ServerContext& context, auto& stream) {
    return agent.opened().size() % 2 == 1 ? ScriptedAgent::need(context, "test64")
                                          : agent.echo(stream);
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  for (int turns = 0; turns < 40; ++turns) {
    probe_ = {};
    open();
    loop_.restart();
    for (int i = 0; i < turns; ++i) loop_.run_one_for(milliseconds(5));
    const bool was_up = probe_.up.has_value();
    const std::size_t printed = probe_.progress.size();
    link_.reset();
    loop_.restart();
    loop_.run_for(milliseconds(3));
    EXPECT_EQ(probe_.up.has_value(), was_up);
    EXPECT_EQ(probe_.progress.size(), printed) << probe_.event_text();
    EXPECT_FALSE(probe_.down.has_value()) << probe_.event_text();
  }
}

TEST_F(AgentLinkTest, SendsTheBundleThatIsMissing) {
  ScriptedAgent agent([&](grpc::ServerContext& context, auto& stream) {
    return agent.put_bytes().empty() ? ScriptedAgent::need(context, "test64") : agent.echo(stream);
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  EXPECT_EQ(agent.put_bytes(), std::string(200'000, 'b'));
  EXPECT_EQ(agent.put_bundle().bundle(), agent.opened().back().bundle());
  EXPECT_EQ(agent.put_bundle().architecture(), "test64");
  EXPECT_EQ(agent.put_bundle().sha256(), std::string(64, 'a'));
  EXPECT_EQ(agent.put_bundle().bytes(), 200'000u);
  EXPECT_LE(agent.largest_data(), 65'536u);
  EXPECT_EQ(agent.opened().size(), 2u);
  EXPECT_TRUE(probe_.printed("sending ivy-node (1 MiB)")) << probe_.event_text();
  EXPECT_TRUE(probe_.printed("sending ivy-node (65 % of 1 MiB)")) << probe_.event_text();
}

TEST_F(AgentLinkTest, DoesNotSendABundleTwice) {
  ScriptedAgent agent(
      [&](grpc::ServerContext& context, auto&) { return ScriptedAgent::need(context, "test64"); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  expect_down(LinkFailure::kBootstrap, "the bundle is not here");
  EXPECT_EQ(agent.opened().size(), 2u);
}

TEST_F(AgentLinkTest, NamesAnArchitectureWithoutABundle) {
  ScriptedAgent agent(
      [&](grpc::ServerContext& context, auto&) { return ScriptedAgent::need(context, "riscv64"); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  expect_down(LinkFailure::kBootstrap, "the host is riscv64");
}

TEST_F(AgentLinkTest, ReportsACacheWithoutRoom) {
  ScriptedAgent agent(
      [&](grpc::ServerContext& context, auto&) { return ScriptedAgent::need(context, "test64"); });
  agent.put_answer = {grpc::StatusCode::RESOURCE_EXHAUSTED, "/home is full"};
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  expect_down(LinkFailure::kBootstrap, "/home is full");
}

TEST_F(AgentLinkTest, RetriesIfTheAgentReceivesTooManyBundles) {
  ScriptedAgent agent([&](grpc::ServerContext& context, auto& stream) {
    return agent.opened().size() < 3 ? ScriptedAgent::need(context, "test64") : agent.echo(stream);
  });
  agent.busy_puts = 2;
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  EXPECT_EQ(agent.opened().size(), 3u);
}

TEST_F(AgentLinkTest, ReportsTheFailureLineOfTheRelay) {
  ScriptedAgent agent([&](auto&, auto& stream) {
    ScriptedAgent::send_opened(stream);
    ScriptedAgent::say(stream, "\001ivy:fail no-such-job\n");
    return grpc::Status::OK;
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  EXPECT_EQ(down().failure, LinkFailure::kNoSuchJob) << probe_.event_text();
}

TEST_F(AgentLinkTest, MapsStatusesToFailures) {
  using grpc::StatusCode;
  const struct {
    StatusCode code;
    LinkFailure failure;
  } cases[] = {
      {StatusCode::NOT_FOUND, LinkFailure::kNoSuchJob},
      {StatusCode::ALREADY_EXISTS, LinkFailure::kNoSuchJob},
      {StatusCode::PERMISSION_DENIED, LinkFailure::kBroken},
      {StatusCode::UNAVAILABLE, LinkFailure::kBootstrap},
      {StatusCode::INTERNAL, LinkFailure::kBootstrap},
      {StatusCode::UNIMPLEMENTED, LinkFailure::kBootstrap},
  };
  for (const auto& expected : cases) {
    ScriptedAgent agent([&](auto&, auto&) { return grpc::Status(expected.code, "so it is"); });
    agent.serve(authority(), good_host());
    configure(agent.port());
    context_.reset();
    probe_ = {};
    open(AgentLink::Route::kDirect, true);
    expect_down(expected.failure, "so it is");
  }
}

TEST_F(AgentLinkTest, NamesAnAgentThatForbidsTheJob) {
  ScriptedAgent agent([](auto&, auto&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "alice may not launch here");
  });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  expect_down(LinkFailure::kAuthentication, "rejected the connection: alice may not launch here");
}

TEST_F(AgentLinkTest, BreaksIfTheAgentDiesAndIsThenRefused) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  agent.stop();
  EXPECT_EQ(down().failure, LinkFailure::kBroken) << probe_.event_text();
  probe_ = {};
  open(AgentLink::Route::kDirect, true, kAgentAnswerRedial);
  expect_down(LinkFailure::kRefused, "127.0.0.1 port");
}

TEST_F(AgentLinkTest, FailsWithRefusedWhenNoProcessListens) {
  DumbListener listener;
  listener.reject();
  configure(listener.port());
  open();
  expect_down(LinkFailure::kRefused, "Connection refused");
  EXPECT_NE(probe_.down->fix.find("systemctl start ivy-agent@alice"), std::string::npos)
      << probe_.down->fix;
}

TEST_F(AgentLinkTest, GivesUpOnASilentListener) {
  const DumbListener listener;
  configure(listener.port());
  const auto before = std::chrono::steady_clock::now();
  open(AgentLink::Route::kDirect, false, milliseconds(300));
  expect_down(LinkFailure::kUnreachable, "no response");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

TEST_F(AgentLinkTest, RejectsAnotherServiceOnTheAgentsPort) {
  DumbListener listener;
  configure(listener.port());
  const std::jthread other_service([&] { listener.say("SSH-2.0-OpenSSH_9.2\r\n"); });
  open();
  expect_down(LinkFailure::kAuthentication, "no TLS with the agent on 127.0.0.1");
}

TEST_F(AgentLinkTest, RejectsAnAgentOfAnotherCa) {
  const TestAuthority other("other CA");
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve(authority(), other.host("node1", {"node1"}, {"127.0.0.1"}));
  configure(agent.port());
  open();
  expect_down(LinkFailure::kAuthentication, "the agent on 127.0.0.1");
  EXPECT_TRUE(agent.opened().empty());
}

TEST_F(AgentLinkTest, RejectsACertificateOfAnotherNameAndPrintsItsNames) {
  expect_rejected(authority().host("node9", {"node9.cluster"}, {"10.9.9.9"}), "node9.cluster");
}

TEST_F(AgentLinkTest, RejectsAnExpiredCertificateAndPrintsItsDate) {
  expect_rejected(authority().issue({.uris = {"ivy://host/node1"},
                                     .dns_names = {"node1"},
                                     .addresses = {"127.0.0.1"},
                                     .usages = {"serverAuth"},
                                     .until = -3600}),
                  "expired");
}

TEST_F(AgentLinkTest, RejectsAnAgentWithAUsersCertificate) {
  expect_rejected(authority().user("mallory"), "mallory");
}

TEST_F(AgentLinkTest, RejectsAnAgentThatServesAnotherUser) {
  expect_rejected(authority().issue({.uris = {"ivy://host/node1", "ivy://serves/bob"},
                                     .dns_names = {"node1"},
                                     .addresses = {"127.0.0.1"},
                                     .usages = {"serverAuth"}}),
                  "serves bob, not alice");
}

TEST_F(AgentLinkTest, NamesAnAgentThatRejectsOurCertificate) {
  const TestAuthority other("other CA");
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  // The agent requires certificates of the other CA, although its own is from ours.
  agent.serve(other, good_host());
  configure(agent.port());
  open();
  expect_down(LinkFailure::kAuthentication,
              "closed the connection after it received our certificate user/alice");
  EXPECT_TRUE(agent.opened().empty());
}

TEST_F(AgentLinkTest, ReportsOurExpiredCertificateBeforeDialling) {
  configure(authority(), authority().expired_user("alice"), 9);
  open();
  expect_down(LinkFailure::kAuthentication, "your certificate");
  EXPECT_NE(probe_.down->fix.find("ivy-agent renew --user alice"), std::string::npos)
      << probe_.down->fix;
}

TEST_F(AgentLinkTest, DialsNothingWithoutAConfiguration) {
  setenv("IVY_AGENT_CONFIG", "/nonexistent/agent.toml", 1);
  open();
  expect_down(LinkFailure::kAuthentication, "agent.toml");
}

TEST_F(AgentLinkTest, DoesNotUseAgentsForAnotherUserOfTheHost) {
  configure(9);
  Host wanted = host();
  wanted.user = "bob";
  open(AgentLink::Route::kDirect, false, kAgentAnswer, wanted);
  expect_down(LinkFailure::kAuthentication, "as alice, not as bob");
}

TEST_F(AgentLinkTest, WarnsOfExpiringCertificatesWithTheCommand) {
  ScriptedAgent agent([&](auto&, auto& stream) {
    ScriptedAgent::send_opened(stream, std::time(nullptr) + 3 * test::kTestDay);
    std::string bytes;
    while (agent.hear(stream, bytes)) continue;
    return grpc::Status::OK;
  });
  agent.serve(authority(), good_host());
  configure(
      authority(),
      authority().issue(
          {.uris = {"ivy://user/alice"}, .usages = {"clientAuth"}, .until = 5 * test::kTestDay}),
      agent.port());
  open();
  ASSERT_TRUE(is_up()) << probe_.event_text();
  EXPECT_NE(notes_.find("ivy-agent renew --user alice"), std::string::npos) << notes_;
  EXPECT_NE(notes_.find("ivy-agent renew 127.0.0.1"), std::string::npos) << notes_;
}

// ---- This host's own agent
// --------------------------------------------------------------------------

TEST_F(AgentLinkTest, UsesTheSocketForThisHost) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve_unix(directory_ / "agent.sock");
  setenv("IVY_AGENT_SOCKET", (directory_ / "agent.sock").c_str(), 1);
  open(AgentLink::Route::kOwnHost, false, kAgentAnswer, host("localhost"));
  ASSERT_TRUE(is_up()) << probe_.event_text();
  EXPECT_EQ(probe_.up->transport, Transport::kAgent);
  link_->write("ping");
  EXPECT_TRUE(run_until(loop_, [&] { return probe_.bytes == "ping"; }));
}

TEST_F(AgentLinkTest, DoesNotTrustASocketInADirectoryOfOthers) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve_unix(directory_ / "agent.sock");
  setenv("IVY_AGENT_SOCKET", (directory_ / "agent.sock").c_str(), 1);
  ASSERT_EQ(chmod(directory_.path().c_str(), 0777), 0);
  open(AgentLink::Route::kOwnHost, false, kAgentAnswer, host("localhost"));
  expect_down(LinkFailure::kAuthentication, "agent.sock");
  EXPECT_TRUE(agent.opened().empty());
}

// ---- auto
// -------------------------------------------------------------------------------------------------

// A link that fails or comes up immediately.
class FakeLink : public HostLink {
 public:
  FakeLink(boost::asio::io_context& loop, std::optional<LinkDown> failure, HostLinkEvents& owner)
      : loop_(loop), failure_(std::move(failure)), owner_(owner) {}
  void open(const OpenRequest&) override {
    boost::asio::post(loop_, [this] {
      if (failure_) return owner_.link_down(*this, *failure_);
      owner_.link_up(*this, LinkUp{Transport::kSsh, {}, {}, {}, {}});
    });
  }
  void write(std::string) override {}
  void send_alive(std::string_view) override {}
  void close() override {}

 private:
  boost::asio::io_context& loop_;
  const std::optional<LinkDown> failure_;
  HostLinkEvents& owner_;
};

class AutoLinkTest : public AgentLinkTest {
 protected:
  // Opens a link with these transports; each fails, or comes up if it has no failure.
  using Tries = std::vector<std::pair<Transport, std::optional<LinkDown>>>;
  class FakeAutoLink : public AutoLink {
   public:
    FakeAutoLink(const std::shared_ptr<TransportContext>& context, const Host& host,
                 const Tries& tries, HostLinkEvents& owner)
        : AutoLink(context, host, transports(tries), owner), tries_(tries) {}

   private:
    static std::vector<Transport> transports(const Tries& tries) {
      std::vector<Transport> all;
      for (const auto& [transport, failure] : tries) all.push_back(transport);
      return all;
    }
    std::unique_ptr<HostLink> make_link_by(Transport) override {
      return std::make_unique<FakeLink>(context_->loop(), tries_[made_++].second, *this);
    }
    const Tries tries_;
    std::size_t made_ = 0;
  };
  void open(const Tries& tries) {
    link_ = std::make_unique<FakeAutoLink>(context(), host(), tries, probe_);
    link_->open(OpenRequest{kJob, 7, false});
    ASSERT_TRUE(run_until(loop_, [&] { return probe_.up || probe_.down; }));
  }
  void open_with_agent_failing(const LinkDown& agents) {
    open({{Transport::kAgent, agents}, {Transport::kSsh, std::nullopt}});
  }
};

TEST_F(AutoLinkTest, UsesSshWithANoteIfThereIsNoAgent) {
  open_with_agent_failing({LinkFailure::kRefused, "refused", ""});
  EXPECT_TRUE(probe_.up.has_value());
  EXPECT_NE(notes_.find("note: 127.0.0.1: ssh is used: refused"), std::string::npos) << notes_;
  EXPECT_EQ(context()->transport_of(host()), Transport::kSsh);
}

TEST_F(AutoLinkTest, UsesSshAndReportsARejectedCertificate) {
  open_with_agent_failing({LinkFailure::kAuthentication, "belongs to another CA", ""});
  EXPECT_TRUE(probe_.up.has_value());
  EXPECT_NE(notes_.find("note: 127.0.0.1: ssh is used: belongs to another CA"), std::string::npos)
      << notes_;
}

TEST_F(AutoLinkTest, DoesNotBypassAnAgentThatRejectsTheUser) {
  open_with_agent_failing({LinkFailure::kBootstrap, "it drains", ""});
  ASSERT_TRUE(probe_.down.has_value());
  EXPECT_EQ(probe_.down->message, "it drains");
}

TEST_F(AutoLinkTest, ReportsEachReasonOnce) {
  const LinkDown other{LinkFailure::kRefused, "of its own", ""};
  const LinkDown same{LinkFailure::kRefused, "the same", ""};
  open({{Transport::kAgent, other}, {Transport::kAgent, same}, {Transport::kSsh, same}});
  ASSERT_TRUE(probe_.down.has_value());
  EXPECT_EQ(probe_.down->message, "the same (its agent: of its own)");
}

// A loopback address that is not a name of this host, so `auto` takes it for another host.
constexpr char kElsewhere[] = "0.0.0.0";

class AutoChoiceTest : public AgentLinkTest {
 protected:
  // /bin/false stands in for ssh: its error shows that ssh was tried.
  void dial(int attempt) {
    options_.ssh_command = {"/bin/false"};
    probe_ = {};
    link_ = make_link(context(), host(kElsewhere), probe_, attempt);
    link_->open(OpenRequest{kJob, 7, attempt > 0});
    ASSERT_TRUE(run_until(loop_, [&] { return probe_.up || probe_.down; }));
  }
};

TEST_F(AutoChoiceTest, TriesTheAgentFirstAndKeepsTheChoiceOnARedial) {
  ScriptedAgent agent([&](auto&, auto& stream) { return agent.echo(stream); });
  agent.serve(authority(), good_host());
  configure(agent.port());
  dial(0);
  ASSERT_TRUE(probe_.up.has_value()) << probe_.event_text();
  EXPECT_EQ(probe_.up->transport, Transport::kAgent);
  agent.stop();
  dial(1);
  ASSERT_TRUE(probe_.down.has_value());
  EXPECT_EQ(probe_.down->failure, LinkFailure::kRefused) << probe_.event_text();
  EXPECT_EQ(probe_.down->message.find("ssh"), std::string::npos) << probe_.event_text();
}

TEST_F(AutoChoiceTest, FallsBackToSshAndReportsBothReasons) {
  DumbListener listener;
  listener.reject();
  configure(listener.port());
  dial(0);
  ASSERT_TRUE(probe_.down.has_value());
  EXPECT_NE(probe_.down->message.find("(its agent: no agent listens"), std::string::npos)
      << probe_.event_text();
  EXPECT_EQ(notes_, "");
}

TEST_F(AutoChoiceTest, UsesOnlySshWithoutAConfiguration) {
  setenv("IVY_AGENT_CONFIG", "", 1);
  setenv("XDG_CONFIG_HOME", directory_.path().c_str(), 1);
  dial(0);
  unsetenv("XDG_CONFIG_HOME");
  ASSERT_TRUE(probe_.down.has_value());
  EXPECT_EQ(probe_.down->message.find("agent"), std::string::npos) << probe_.event_text();
  EXPECT_EQ(notes_, "");
}

TEST_F(AutoChoiceTest, ReportsAnExpiredCertificateOnce) {
  configure(authority(), authority().expired_user("alice"), 9);
  dial(0);
  dial(0);
  EXPECT_NE(notes_.find("note: ssh is used: your certificate"), std::string::npos) << notes_;
  EXPECT_EQ(std::count(notes_.begin(), notes_.end(), '\n'), 1) << notes_;
}

TEST_F(AutoLinkTest, LimitsNotesOfOneKind) {
  for (int i = 0; i < 20; ++i) context()->note("kind", "note: host " + std::to_string(i));
  EXPECT_EQ(std::count(notes_.begin(), notes_.end(), '\n'), 4);
}

// ---- ivyctl's queries
// -----------------------------------------------------------------------------

class AgentClientTest : public AgentLinkTest {
 protected:
  struct Answer {
    std::string host;
    Result<std::vector<JobEntry>> jobs;
  };
  std::vector<Answer> ask(const std::vector<Host>& hosts, milliseconds deadline) {
    std::vector<Answer> answers;
    list_jobs(loop_, context(), hosts, deadline,
              [&](const Host& asked, const Result<std::vector<JobEntry>>& jobs) {
                answers.push_back({asked.name, jobs});
              });
    EXPECT_TRUE(answers.empty()) << "answered from inside the question";
    EXPECT_TRUE(run_until(loop_, [&] { return answers.size() == hosts.size(); }));
    return answers;
  }
};

TEST_F(AgentClientTest, ListsTheJobsOfManyHosts) {
  ScriptedAgent agent([](auto&, auto&) { return grpc::Status::OK; });
  agent::v1::JobEntry& job = *agent.list_answer.add_jobs();
  job.set_job_id(kJob);
  job.set_attached(true);
  job.mutable_job()->add_hosts("node1");
  job.mutable_job()->set_program("train.py");
  agent.serve(authority(), good_host());
  configure(agent.port());
  Host far = host();
  far.port = agent.port();
  Host refusing = host();
  DumbListener listener;
  listener.reject();
  refusing.port = listener.port();
  int listed = 0;
  for (const Answer& answer : ask({far, refusing, far}, std::chrono::seconds(10))) {
    if (!answer.jobs.ok()) {
      EXPECT_EQ(answer.jobs.error().code, Code::kUnavailable) << answer.jobs.error().message;
      continue;
    }
    ASSERT_EQ(answer.jobs->size(), 1u);
    EXPECT_EQ(answer.jobs->front().job_id, kJob);
    EXPECT_EQ(answer.jobs->front().program, "train.py");
    EXPECT_TRUE(answer.jobs->front().attached);
    ++listed;
  }
  EXPECT_EQ(listed, 2);
}

TEST_F(AgentClientTest, GivesUpOnASilentAgentAtTheDeadline) {
  const DumbListener listener;
  configure(listener.port());
  Host far = host();
  far.port = listener.port();
  const std::vector<Answer> answers = ask({far}, milliseconds(200));
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_FALSE(answers.front().jobs.ok());
  EXPECT_EQ(answers.front().jobs.error().code, Code::kDeadlineExceeded);
}

TEST_F(AgentClientTest, AnswersOnceIfTheDeadlineExpiresToo) {
  DumbListener listener;
  listener.reject();
  configure(listener.port());
  Host far = host();
  far.port = listener.port();
  int answers = 0;
  list_jobs(loop_, context(), {far}, milliseconds(100),
            [&](const auto&, const auto&) { ++answers; });
  loop_.run_one();  // Sends the query.
  // The loop is blocked until both the error and the deadline are due.
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_TRUE(run_until(loop_, [&] { return answers > 0; }));
  loop_.restart();
  loop_.poll();
  EXPECT_EQ(answers, 1);
}

TEST_F(AgentClientTest, ReportsAMissingConfiguration) {
  setenv("IVY_AGENT_SOCKET", (directory_ / "none.sock").c_str(), 1);
  const std::vector<Answer> answers = ask({host("localhost")}, milliseconds(500));
  ASSERT_FALSE(answers.front().jobs.ok());
  EXPECT_EQ(answers.front().jobs.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ivy
