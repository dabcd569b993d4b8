// SPDX-License-Identifier: Apache-2.0
// The agent's service in this process: a separate loop, a gRPC server on a Unix socket, and a state
// directory and a bundle directory that are removed afterwards. A test can stop it and start it
// again while jobs run, as a restart does.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/daemon/agent_service.h"
#include "agent/daemon/net/authorization.h"
#include "tests/agent/stream_launcher.h"
#include "tests/support/eventually.h"

namespace ivy::test {

class AgentFixture : public testing::Test, protected AgentReports {
 protected:
  AgentFixture() {
    std::signal(SIGPIPE, SIG_IGN);
    auto policy = std::make_shared<AuthorizationPolicy>();
    policy->plaintext_loopback = true;
    set_authorization_policy(policy);
    std::string path = "/tmp/ivy-agent-test.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) abort();
    root_ = path;
    utsname machine{};
    uname(&machine);
    architecture_ = machine.machine;
  }
  ~AgentFixture() override {
    end_agent();
    set_authorization_policy(nullptr);
    // A process that has just been stopped may still write there.
    std::error_code ignored;
    EXPECT_TRUE(eventually([&] {
      std::filesystem::remove_all(root_, ignored);
      return !std::filesystem::exists(root_, ignored);
    }));
  }

  static constexpr const char* kBundle = "0123456789abcdef01234567";
  std::string bundle_directory() const { return root_ + "/bundles"; }
  std::string state_directory() const { return root_ + "/state"; }
  std::string node_directory() const {
    return bundle_directory() + "/" + kBundle + "-" + architecture_;
  }
  void put_bundle() const {
    std::filesystem::create_directories(node_directory());
    std::filesystem::create_symlink(IVY_NODE_BINARY, node_directory() + "/ivy-node");
  }

  AgentServiceOptions options() const {
    AgentServiceOptions options;
    options.state_directory = state_directory();
    options.bundle_directory = bundle_directory();
    options.other_bundle_directories.emplace();
    options.version = "test";
    options.containment = "none in tests";
    options.environment = environment_of(environ);
    return options;
  }

  // Returns false, with the reason in make_error_, if the service cannot be made.
  bool start_agent() { return start_agent(options()); }
  bool start_agent(AgentServiceOptions with) {
    loop_ = std::make_unique<boost::asio::io_context>(1);
    work_.emplace(loop_->get_executor());
    thread_ = std::thread([this] { loop_->run(); });
    on_loop([&] {
      Result<std::unique_ptr<AgentService>> made =
          AgentService::make(*loop_, std::move(with), *this);
      if (made.ok())
        service_ = std::move(made).value();
      else
        make_error_ = made.error();
    });
    if (!service_) {
      end_agent();
      return false;
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + root_ + "/agent.sock", grpc::InsecureServerCredentials());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &loopback_port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }
  // Stops the agent as SIGTERM does: transports hang up, and wardens keep running.
  void end_agent() {
    if (!loop_) return;
    if (service_) on_loop([&] { service_->stop(); });
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    server_.reset();
    on_loop([&] { service_.reset(); });
    work_.reset();
    loop_->stop();
    thread_.join();
    loop_.reset();
    unlink((root_ + "/agent.sock").c_str());
  }
  void on_loop(std::function<void()> task) {
    std::promise<void> done;
    boost::asio::post(*loop_, [&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  std::string address() const {
    return calls_over_tcp_ ? "127.0.0.1:" + std::to_string(loopback_port_)
                           : "unix:" + root_ + "/agent.sock";
  }
  // Each channel has a separate connection.
  std::shared_ptr<grpc::Channel> channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<agent::v1::Agent::Stub> stub() const {
    return agent::v1::Agent::NewStub(channel());
  }
  agent::v1::ListReply list() const {
    grpc::ClientContext context;
    agent::v1::ListReply reply;
    EXPECT_TRUE(stub()->List(&context, {}, &reply).ok());
    return reply;
  }
  agent::v1::FactsReply facts() const {
    grpc::ClientContext context;
    agent::v1::FactsReply reply;
    EXPECT_TRUE(stub()->Facts(&context, {}, &reply).ok());
    return reply;
  }
  grpc::Status drain(bool stop_jobs, bool undo = false) const {
    grpc::ClientContext context;
    agent::v1::DrainRequest request;
    agent::v1::DrainReply reply;
    request.set_stop_jobs(stop_jobs);
    request.set_undo(undo);
    return stub()->Drain(&context, request, &reply);
  }

  agent::v1::StopReply stop(const std::string& job_id, std::uint32_t grace_ms) const {
    grpc::ClientContext context;
    agent::v1::StopRequest request;
    agent::v1::StopReply reply;
    request.set_job_id(job_id);
    request.set_grace_ms(grace_ms);
    EXPECT_TRUE(stub()->Stop(&context, request, &reply).ok());
    return reply;
  }

  std::vector<std::string> audit() { return copy_of(audit_); }
  std::vector<std::string> warnings() { return copy_of(warnings_); }
  std::vector<std::string> status() { return copy_of(status_); }
  // Returns the job's only audit line as soon as it is written.
  std::string audit_of(const std::string& job_id,
                       std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
    std::vector<std::string> found;
    eventually(
        [&] {
          found.clear();
          for (const std::string& line : audit())
            if (line.find(job_id) != std::string::npos) found.push_back(line);
          return !found.empty();
        },
        deadline);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? std::string() : found.front();
  }
  static bool has_outcome(const std::string& line, const std::string& outcome) {
    return line.find("outcome=\"" + outcome + "\"") != std::string::npos;
  }
  // Starts one worker and waits until it has printed "ready".
  void start_sleeper(StreamLauncher& launcher) {
    launcher.open(channel());
    launcher.send_hello();
    launcher.start(1, "echo ready; exec sleep 600");
    ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
  }
  static bool all_exited(StreamLauncher& launcher,
                         std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
    return launcher.wait([&] { return launcher.processes().empty(); }, deadline);
  }

  std::string root_;
  std::string architecture_;
  bool calls_over_tcp_ = false;  // As launchers on other hosts call.
  int loopback_port_ = 0;
  Error make_error_;
  std::unique_ptr<boost::asio::io_context> loop_;
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<grpc::Server> server_;

 private:
  void audit(const std::string& line) override { keep(audit_, line); }
  void warn(const std::string& line) override { keep(warnings_, line); }
  void status(const std::string& line) override { keep(status_, line); }
  void keep(std::vector<std::string>& lines, const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines.push_back(line);
  }
  std::vector<std::string> copy_of(const std::vector<std::string>& lines) {
    const std::lock_guard lock(mutex_);
    return lines;
  }

  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<std::string> audit_;
  std::vector<std::string> warnings_;
  std::vector<std::string> status_;
};

}  // namespace ivy::test
