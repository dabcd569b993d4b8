// SPDX-License-Identifier: Apache-2.0
// An agent for tests: the real service, driven by a script. Its calls run on gRPC's own threads.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/wire/agent.grpc.pb.h"
#include "tests/support/test_certificates.h"

namespace ivy::test {

class ScriptedAgent : public agent::v1::Agent::Service {
 public:
  using Stream = grpc::ServerReaderWriter<agent::v1::OpenReply, agent::v1::OpenRequest>;
  // Handles one Open call after its first message.
  using Script = std::function<grpc::Status(grpc::ServerContext&, Stream&)>;

  explicit ScriptedAgent(Script script) : script_(std::move(script)) {}
  ~ScriptedAgent() override { stop(); }

  // Serves on a free port of 127.0.0.1. Clients must present a certificate of the authority.
  void serve(const TestAuthority& authority, const KeyAndCertificate& host) {
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = authority.texts().certificate_pem;
    options.pem_key_cert_pairs = {{host.key_pem, host.certificate_pem}};
    listen("127.0.0.1:" + std::to_string(port_), grpc::SslServerCredentials(options));
  }
  void serve_unix(const std::string& path) {
    listen("unix:" + path, grpc::InsecureServerCredentials());
  }
  void stop() {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(port_); }

  // The Open messages received so far.
  std::vector<agent::v1::OpenJob> opened() {
    const std::lock_guard lock(mutex_);
    return opened_;
  }
  std::string put_bytes() {
    const std::lock_guard lock(mutex_);
    return put_bytes_;
  }
  agent::v1::PutBundle put_bundle() {
    const std::lock_guard lock(mutex_);
    return put_bundle_;
  }
  std::size_t largest_data() const { return largest_data_; }
  int half_closed() const { return half_closed_; }

  // ---- for scripts ----
  static void send_opened(Stream& stream, std::int64_t certificate_expires_at = 0) {
    agent::v1::OpenReply reply;
    reply.mutable_opened()->set_version("test");
    reply.mutable_opened()->set_certificate_expires_at(certificate_expires_at);
    stream.Write(reply);
  }
  static void say(Stream& stream, const std::string& bytes) {
    agent::v1::OpenReply reply;
    reply.set_data(bytes);
    stream.Write(reply);
  }
  // Receives the next data; returns false at the end of the requests.
  bool hear(Stream& stream, std::string& bytes) {
    agent::v1::OpenRequest request;
    if (!stream.Read(&request)) {
      ++half_closed_;
      return false;
    }
    bytes = request.data();
    largest_data_ = std::max<std::size_t>(largest_data_, bytes.size());
    return true;
  }
  // Echoes all data until the requests end.
  grpc::Status echo(Stream& stream) {
    send_opened(stream);
    std::string bytes;
    while (hear(stream, bytes)) say(stream, bytes);
    return grpc::Status::OK;
  }
  static grpc::Status need(grpc::ServerContext& context, const std::string& architecture) {
    context.AddTrailingMetadata("ivy-need", architecture);
    return {grpc::StatusCode::FAILED_PRECONDITION, "the bundle is not here"};
  }

 private:
  void listen(const std::string& where, std::shared_ptr<grpc::ServerCredentials> credentials) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(where, std::move(credentials), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status Open(grpc::ServerContext* context, Stream* stream) override {
    agent::v1::OpenRequest request;
    if (!stream->Read(&request)) return {grpc::StatusCode::INVALID_ARGUMENT, "nothing came"};
    {
      const std::lock_guard lock(mutex_);
      opened_.push_back(request.open());
    }
    return script_(*context, *stream);
  }
  grpc::Status Put(grpc::ServerContext*, grpc::ServerReader<agent::v1::PutRequest>* reader,
                   agent::v1::PutReply*) override {
    agent::v1::PutRequest request;
    while (reader->Read(&request)) {
      const std::lock_guard lock(mutex_);
      if (request.has_bundle()) put_bundle_ = request.bundle();
      largest_data_ = std::max<std::size_t>(largest_data_, request.data().size());
      put_bytes_ += request.data();
    }
    if (busy_puts > 0) {
      --busy_puts;
      return {grpc::StatusCode::ABORTED, "more than 16 bundles are being received"};
    }
    return put_answer;
  }
  grpc::Status List(grpc::ServerContext*, const agent::v1::ListRequest*,
                    agent::v1::ListReply* reply) override {
    *reply = list_answer;
    return grpc::Status::OK;
  }

 public:
  grpc::Status put_answer = grpc::Status::OK;
  std::atomic<int> busy_puts = 0;  // Number of uploads to reject because others are in progress.
  agent::v1::ListReply list_answer;

 private:
  const Script script_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::vector<agent::v1::OpenJob> opened_;
  std::string put_bytes_;
  agent::v1::PutBundle put_bundle_;
  std::atomic<std::size_t> largest_data_ = 0;
  std::atomic<int> half_closed_ = 0;
};

}  // namespace ivy::test
