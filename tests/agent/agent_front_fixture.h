// SPDX-License-Identifier: Apache-2.0
// An agent without its service: acceptor, credentials and gRPC server in front of a small test
// service, with certificates from the test's own CA in a directory that is removed afterwards.
#pragma once

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/agent_log.h"
#include "agent/daemon/net/agent_server.h"
#include "agent/daemon/net/authorization.h"
#include "proto/wire/agent.grpc.pb.h"
#include "tests/agent/agent_test_authority.h"
#include "tests/support/eventually.h"

namespace ivy::test {

// Facts returns the identity of the caller; Open takes whatever arrives.
class TinyService final : public agent::v1::Agent::CallbackService {
 public:
  grpc::ServerUnaryReactor* Facts(grpc::CallbackServerContext* context,
                                  const agent::v1::FactsRequest*,
                                  agent::v1::FactsReply* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const auto caller = authorize_caller(*context);
    ++calls;
    if (!caller.ok()) {
      reactor->Finish(
          grpc::Status(static_cast<grpc::StatusCode>(caller.error().code), caller.error().message));
      return reactor;
    }
    reply->set_user(caller->certificate());
    reply->set_host_name(caller->address);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  // Never finishes by itself, so that a shutdown has to end it. With `writes` it sends 64 KiB again
  // and again.
  grpc::ServerBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply>* Open(
      grpc::CallbackServerContext*) override {
    struct Silent : grpc::ServerBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply> {
      explicit Silent(TinyService& owner) : service(owner) {
        ++service.open_calls;
        StartRead(&request);
        reply.set_data(std::string(64 * 1024, 'x'));
        if (service.writes) StartWrite(&reply);
      }
      void OnWriteDone(bool ok) override {
        if (!ok) return;
        ++service.written;
        StartWrite(&reply);
      }
      void OnReadDone(bool ok) override {
        if (!ok) return;
        service.received += request.data().size();
        if (service.reads) StartRead(&request);
      }
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override {
        --service.open_calls;
        delete this;
      }
      TinyService& service;
      agent::v1::OpenRequest request;
      agent::v1::OpenReply reply;
    };
    return new Silent(*this);
  }

  std::atomic<int> calls = 0;
  std::atomic<int> open_calls = 0;
  std::atomic<std::uint64_t> received = 0;
  std::atomic<int> written = 0;
  std::atomic<bool> reads = true;
  std::atomic<bool> writes = false;
};

class AgentFront : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_log::start();
    write_certificates(authority_.host());
    certificates_.write("ca.crt", authority_.certificate());
    chmod(sockets_.path().c_str(), 0700);
    options_.socket_path = sockets_ / "agent.sock";
    options_.listen = {{"127.0.0.1", 0}};
  }
  void TearDown() override {
    if (server_ != nullptr) {
      on_loop([this] { server_->stop_accepting(); });
      server_->shut_down(std::chrono::milliseconds(0));
      on_loop([this] { server_.reset(); });
    }
    set_authorization_policy(nullptr);
    agent_log::name_suspects(nullptr);
    if (thread_.joinable()) {
      loop_.stop();
      thread_.join();
    }
  }

  void write_certificates(const KeyAndCertificate& host) const {
    certificates_.write("host.key", host.key_pem);
    certificates_.write("host.crt", host.certificate_pem);
  }

  void serve(bool with_certificates = true) {
    if (with_certificates) {
      auto loaded =
          AgentCredentials::load(CertificateFiles{certificates_.path()}, "alice", half_open_);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      credentials_ = std::move(*loaded);
    }
    auto policy = std::make_shared<AuthorizationPolicy>();
    policy->user = "alice";
    policy->credentials = credentials_.get();
    policy->handshakes = &half_open_;
    policy->plaintext_loopback = options_.insecure_loopback.has_value();
    set_authorization_policy(policy);
    agent_log::name_suspects(&half_open_);
    auto started = AgentServer::start(loop_, service_, credentials_.get(), half_open_, options_);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(*started);
    port_ = server_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }

  void on_loop(const std::function<void()>& work) {
    std::promise<void> done;
    boost::asio::post(loop_, [&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }

  // Returns when the agent has read its certificates again.
  void reread_certificates(bool forced = false) {
    on_loop([&] { credentials_->reread(files_, forced); });
    ASSERT_TRUE(eventually([this] {
      bool is_reading = true;
      on_loop([&] { is_reading = credentials_->is_reading(); });
      return !is_reading;
    }));
  }

  // A separate channel: gRPC would otherwise share the connection of an equal channel.
  std::shared_ptr<grpc::Channel> channel(const std::shared_ptr<grpc::ChannelCredentials>& with,
                                         const std::string& target) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // The reader, not gRPC, limits the bytes on their way to it.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 * 1024);
    return grpc::CreateCustomChannel(target, with, arguments);
  }
  std::shared_ptr<grpc::Channel> tls_channel(const KeyAndCertificate& client) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_private_key = client.key_pem;
    options.pem_cert_chain = client.certificate_pem;
    return channel(grpc::SslCredentials(options), "127.0.0.1:" + std::to_string(port_));
  }
  std::shared_ptr<grpc::Channel> unix_channel() const {
    return channel(grpc::InsecureChannelCredentials(), "unix:" + options_.socket_path);
  }
  static grpc::Status ask(const std::shared_ptr<grpc::Channel>& through,
                          agent::v1::FactsReply* reply = nullptr) {
    agent::v1::FactsReply ignored;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + scaled_time(std::chrono::seconds(5)));
    return agent::v1::Agent::NewStub(through)->Facts(&context, {}, reply ? reply : &ignored);
  }
  // Returns the caller's identity as the service sees it, or "refused: " and the error.
  static std::string own_identity(const std::shared_ptr<grpc::Channel>& through) {
    agent::v1::FactsReply reply;
    const grpc::Status status = ask(through, &reply);
    return status.ok() ? reply.user() : "refused: " + status.error_message();
  }

  // Returns a connected socket over which nothing has been sent.
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
  // Returns true if the peer closes within the deadline.
  static bool soon_closed(int descriptor) {
    return eventually([descriptor] {
      char byte = 0;
      const ssize_t count = recv(descriptor, &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && errno != EAGAIN);
    });
  }

  CapturedLog log_;
  TestAuthority authority_;
  TemporaryDirectory certificates_;
  TemporaryDirectory sockets_;
  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  BlockingPool files_{
      [this](std::function<void()> done) { boost::asio::post(loop_, std::move(done)); }};
  TcpConnections connections_;
  HandshakeLimiter half_open_{{}, &connections_};
  TinyService service_;
  AgentServerOptions options_;
  std::unique_ptr<AgentCredentials> credentials_;
  std::unique_ptr<AgentServer> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

}  // namespace ivy::test
