// Streams that one agent carries on to another. Method: two services in this process, the far one
// behind TLS with certificates of a CA of the test's own.
#include <grpcpp/security/server_credentials.h>
#include <signal.h>

#include <fstream>
#include <string>

#include "agent/daemon/forward_channel.h"
#include "tests/agent/agent_fixture.h"
#include "tests/support/test_certificates.h"

namespace ivy::test {
namespace {

class AgentForwardTest : public AgentFixture {
 protected:
  AgentForwardTest() { put_bundle(); }
  ~AgentForwardTest() override { end_far(); }

  // agent.toml of our user, for the near agent.
  AgentServiceOptions near_options() {
    write_user("alice");
    AgentServiceOptions with = options();
    set_variable(with.environment, "IVY_AGENT_CONFIG", files_ / "agent.toml");
    return with;
  }
  void write_user(const std::string& name) {
    const KeyAndCertificate user = authority_.user(name);
    AgentConfig config;
    config.ca = files_.write("ca.crt", authority_.texts().certificate_pem);
    config.certificate = files_.write("user.crt", user.certificate_pem);
    config.key = files_.write("user.key", user.key_pem);
    files_.write("agent.toml", agent_config_text(config));
  }
  void start_far(const KeyAndCertificate& host) {
    AgentServiceOptions with = options();
    with.state_directory = root_ + "/far-state";
    with.version = "far";
    on_loop([&] { far_ = std::move(AgentService::make(*loop_, std::move(with))).value(); });
    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = authority_.texts().certificate_pem;
    tls.pem_key_cert_pairs.push_back({host.key_pem, host.certificate_pem});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &far_port_);
    builder.RegisterService(far_.get());
    far_server_ = builder.BuildAndStart();
    ASSERT_TRUE(far_server_);
  }
  void end_far() {
    if (!far_) return;
    on_loop([&] { far_->stop(); });
    far_server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    far_server_.reset();
    on_loop([&] { far_.reset(); });
  }
  std::string target(const std::string& name = "node2") const {
    return name + " 127.0.0.1:" + std::to_string(far_port_);
  }
  grpc::Status status_of(const agent::v1::OpenJob& job) {
    return AgentStream(channel(), job).status();
  }

  const TestAuthority authority_;
  const TestDirectory files_;
  int far_port_ = 0;
  std::unique_ptr<AgentService> far_;
  std::unique_ptr<grpc::Server> far_server_;
};

TEST_F(AgentForwardTest, CarriesAJobOn) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node2", {"node2"}));
  StreamLauncher launcher(kBundle);
  launcher.set_target(target());
  launcher.open(channel());
  launcher.say_hello();
  EXPECT_EQ(launcher.stream().answer().version(), "far");
  launcher.start(1, "seq 1 200000");
  ASSERT_TRUE(launcher.wait([&] { return launcher.has_report(); }));
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0).ends_with("\n200000\n"); }));
  // So that several jobs share one connection fairly.
  EXPECT_LE(launcher.stream().largest(), 64u << 10);
  // The far agent keeps the job, the near one only carries.
  EXPECT_EQ(list().jobs_size(), 0);
  launcher.finish();
  EXPECT_TRUE(launcher.stream().status().ok());
  audit_of(launcher.job_id());
}

TEST_F(AgentForwardTest, PassesErrorsAndTrailersOn) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node2", {"node2"}));
  StreamLauncher launcher("ffffffffffffffffffffffff");
  launcher.set_target(target());
  AgentStream need(channel(), launcher.job());
  EXPECT_EQ(need.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(need.trailer("ivy-need"), architecture_);
  EXPECT_EQ(status_of(launcher.job(true)).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AgentForwardTest, TheEndOfTheNearStreamReachesTheSupervisor) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node2", {"node2"}));
  StreamLauncher half_closed(kBundle);
  half_closed.set_target(target());
  start_sleeper(half_closed);
  StreamLauncher broken(kBundle);
  broken.set_target(target());
  start_sleeper(broken);
  half_closed.stream().half_close();
  half_closed.fall_silent();
  broken.drop_stream();
  EXPECT_TRUE(all_gone(half_closed, std::chrono::seconds(6)));
  EXPECT_TRUE(all_gone(broken, std::chrono::seconds(6)));
}

// And it is no end of the launcher: the job goes on for a minute, for another way to it.
TEST_F(AgentForwardTest, TheEndOfTheNearAgentIsSeenAtOnce) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node2", {"node2"}));
  StreamLauncher launcher(kBundle, 256u << 20);
  launcher.set_target(target());
  launcher.open(channel());
  launcher.say_hello();
  // Output is under way in both halves when it happens.
  launcher.start(1, "while :; do head -c 1048576 /dev/zero; done");
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0).size() > 4u << 20; }));
  const auto begin = std::chrono::steady_clock::now();
  on_loop([&] { service_->stop(); });
  EXPECT_TRUE(eventually([&] { return launcher.stream().has_ended(); }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, stretched(std::chrono::seconds(1)));
  // Longer than a supervisor waits for a launcher that has gone.
  EXPECT_FALSE(all_gone(launcher, std::chrono::seconds(3)));
  for (const pid_t pid : launcher.processes()) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    if (name == "ivy-supervisor") kill(pid, SIGKILL);
  }
  EXPECT_TRUE(all_gone(launcher, std::chrono::seconds(8)));
}

TEST_F(AgentForwardTest, AnAgentThatEndsCarriesNothingOnAnyMore) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node2", {"node2"}));
  StreamLauncher launcher(kBundle);
  launcher.set_target(target());
  on_loop([&] { service_->stop(); });
  const grpc::Status status = status_of(launcher.job());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(status.error_message().find("the agent is ending"), std::string::npos)
      << status.error_message();
}

TEST_F(AgentForwardTest, AnotherHostsCertificateIsRefusedByName) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.host("node3", {"node3"}));
  StreamLauncher launcher(kBundle);
  launcher.set_target(target());
  const grpc::Status status = status_of(launcher.job());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_NE(status.error_message().find("node3"), std::string::npos) << status.error_message();
}

TEST_F(AgentForwardTest, AForeignAgentIsRefused) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(TestAuthority("another CA").host("node2", {"node2"}));
  StreamLauncher launcher(kBundle);
  launcher.set_target(target());
  const grpc::Status status = status_of(launcher.job());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
}

TEST_F(AgentForwardTest, AUserCannotServe) {
  ASSERT_TRUE(start_agent(near_options()));
  start_far(authority_.user("alice"));
  StreamLauncher launcher(kBundle);
  launcher.set_target(target());
  EXPECT_EQ(status_of(launcher.job()).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AgentForwardTest, WithoutAConfigurationItSaysSo) {
  AgentServiceOptions with = options();
  set_variable(with.environment, "HOME", root_);
  unset_variable(with.environment, "XDG_CONFIG_HOME");
  unset_variable(with.environment, "IVY_AGENT_CONFIG");
  ASSERT_TRUE(start_agent(with));
  StreamLauncher launcher(kBundle);
  launcher.set_target("node2 127.0.0.1:1");
  const grpc::Status status = status_of(launcher.job());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("agent.toml"), std::string::npos);
}

TEST_F(AgentForwardTest, NobodyThereIsUnavailable) {
  ASSERT_TRUE(start_agent(near_options()));
  StreamLauncher launcher(kBundle);
  launcher.set_target("node2 127.0.0.1:1");
  EXPECT_EQ(status_of(launcher.job()).error_code(), grpc::StatusCode::UNAVAILABLE);
  launcher.set_target("node2 notanaddress:7411");
  EXPECT_EQ(status_of(launcher.job()).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AgentForwardTest, AChannelIsKeptUntilTheCertificateChanges) {
  ASSERT_TRUE(start_agent());
  const AgentServiceOptions with = near_options();
  on_loop([&] {
    ForwardChannels channels(*loop_, with.environment);
    const auto first = channels.take("node2 127.0.0.1:1");
    ASSERT_TRUE(first.ok()) << first.error().message;
    EXPECT_EQ(channels.take("node2 127.0.0.1:1")->get(), first->get());
    EXPECT_NE(channels.take("node2 127.0.0.1:2")->get(), first->get());
    EXPECT_EQ(channels.size(), 2u);
    write_user("alice");
    EXPECT_TRUE(
        eventually([&] { return channels.take("node2 127.0.0.1:1")->get() != first->get(); }));
    channels.close();
  });
}

// What was good when the connection was made is judged again for each stream.
TEST_F(AgentForwardTest, ACertificateThatExpiresMeanwhileEndsAKeptConnection) {
  ASSERT_TRUE(start_agent());
  start_far(authority_.issue({.uris = {"ivy://host/node2"},
                              .dns_names = {"node2"},
                              .usages = {"serverAuth"},
                              .until = std::time(nullptr) + 4 - authority_.now()}));
  const AgentServiceOptions with = near_options();
  on_loop([&] {
    ForwardChannels channels(*loop_, with.environment);
    const std::shared_ptr<ForwardChannel> first = channels.take(target()).value();
    ASSERT_TRUE(eventually([&] { return first->grpc()->GetState(true) == GRPC_CHANNEL_READY; }));
    EXPECT_EQ(channels.take(target())->get(), first.get());
    EXPECT_TRUE(eventually([&] { return channels.take(target())->get() != first.get(); }));
    EXPECT_EQ(first->grpc()->GetState(false), GRPC_CHANNEL_READY);
    const std::shared_ptr<ForwardChannel> second = channels.take(target()).value();
    EXPECT_TRUE(eventually([&] {
      second->grpc()->GetState(true);
      return second->refusal().has_value();
    }));
    channels.close();
  });
}

// gRPC dials a failing target again by itself, each second, for as long as the channel is kept.
TEST_F(AgentForwardTest, AConnectionThatCouldNotBeMadeIsNotKept) {
  ASSERT_TRUE(start_agent());
  start_far(authority_.host("node2", {"node2"}));
  const AgentServiceOptions with = near_options();
  on_loop([&] {
    ForwardChannels channels(*loop_, with.environment);
    const auto becomes = [](const ForwardChannel& channel, grpc_connectivity_state state) {
      return eventually([&] { return channel.grpc()->GetState(true) == state; });
    };
    const std::shared_ptr<ForwardChannel> good = channels.take(target()).value();
    ASSERT_TRUE(becomes(*good, GRPC_CHANNEL_READY));
    good->give_up_unless_connected();
    EXPECT_EQ(channels.take(target())->get(), good.get());
    const std::shared_ptr<ForwardChannel> bad = channels.take(target("node3")).value();
    ASSERT_TRUE(becomes(*bad, GRPC_CHANNEL_TRANSIENT_FAILURE));
    bad->give_up_unless_connected();
    EXPECT_TRUE(bad->is_given_up());
    EXPECT_NE(channels.take(target("node3"))->get(), bad.get());
    channels.close();
  });
}

TEST_F(AgentForwardTest, ChannelsAreBounded) {
  ASSERT_TRUE(start_agent());
  const AgentServiceOptions with = near_options();
  on_loop([&] {
    ForwardChannels channels(*loop_, with.environment);
    std::vector<std::shared_ptr<ForwardChannel>> held;
    for (std::size_t i = 0; i < ForwardChannels::kMaxChannels; ++i)
      held.push_back(channels.take("n 127.0.0.1:" + std::to_string(i + 1)).value());
    const auto refused = channels.take("n 127.0.0.2:1");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
    held.pop_back();
    EXPECT_TRUE(channels.take("n 127.0.0.2:1").ok());
    channels.close();
  });
}

}  // namespace
}  // namespace ivy::test
