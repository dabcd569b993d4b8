// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/agent_server.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/resource_quota.h>

#include "proto/os/clock.h"

namespace ivy {
namespace {

// agent.proto promises 64 KiB of data in a message; OpenJob with 64 host names is far smaller.
constexpr int kMaxMessageBytes = 256 * 1024;
constexpr int kMaxStreams = 1024;  // Streams per connection; a launcher uses one or two.
constexpr int kHandshakeTimeoutMs = 5000;

// Launchers may ping every 5 s, also without a call. The limit is a second less, because timers are
// not exact.
constexpr int kMinClientPingIntervalMs = 4000;

// How much gRPC may buffer for a stream whose reader does not read, in each direction. gRPC would
// otherwise measure the link and grow its windows to megabytes.
constexpr int kLookaheadBytes = 256 * 1024;
constexpr int kWriteBufferBytes = 64 * 1024;
constexpr int kMaxFrameBytes = 64 * 1024;
constexpr int kReadChunkBytes = 16 * 1024;
constexpr int kMaxMetadataBytes = 16 * 1024;

// Far more than the largest load needs, so that gRPC never ends a job's stream to save memory.
constexpr std::size_t kQuotaBytes = 512 * 1024 * 1024;
constexpr int kQuotaThreads = 64;

void set_limits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // A compressed message may be a thousand times larger than its limit promises.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);

  // TCP probes whether the peer is there (acceptor.cc): a suspended launcher answers no ping.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingIntervalMs);

  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kWriteBufferBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kLookaheadBytes);

  grpc::ResourceQuota quota("ivy-agent");
  quota.Resize(kQuotaBytes).SetMaxThreads(kQuotaThreads);
  builder.SetResourceQuota(quota);
}

}  // namespace

Result<std::unique_ptr<AgentServer>> AgentServer::start(boost::asio::io_context& loop,
                                                        grpc::Service& service,
                                                        const AgentCredentials* credentials,
                                                        HandshakeLimiter& handshakes,
                                                        const AgentServerOptions& options) {
  IVY_ASSERT(credentials != nullptr || options.listen.empty());
  using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  // Abseil as Debian builds it searches for cycles among gRPC's locks and would abort when it finds
  // one: a suspicion must not end a daemon, and the search costs time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::unique_ptr<AgentServer> made(new AgentServer(loop, handshakes, options.limits));
  grpc::ServerBuilder builder;
  set_limits(builder);
  builder.RegisterService(&service);
  if (credentials != nullptr)
    made->tls_intake_ = builder.experimental().AddExternalConnectionAcceptor(
        From::FROM_FD, credentials->server_credentials());
  made->plain_intake_ = builder.experimental().AddExternalConnectionAcceptor(
      From::FROM_FD, grpc::InsecureServerCredentials());
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr)
    return Error{Code::kInternal, "gRPC did not start; its log lines above show why", {}};
  const Result<void> opened = made->listen(options);
  if (!opened.ok()) {
    made->shut_down(std::chrono::milliseconds(0));
    return opened.error();
  }
  return made;
}

Result<void> AgentServer::listen(const AgentServerOptions& options) {
  auto local = IVY_TRY(Acceptor::listen_unix(loop_, options.socket_path, limits_, *plain_intake_));
  acceptors_.push_back(std::move(local));
  for (const ListenAddress& where : options.listen) {
    const auto addresses = where.address.empty() ? std::vector<std::string>{"0.0.0.0", "::"}
                                                 : std::vector<std::string>{where.address};
    IVY_CHECK(listen_tcp(addresses, where.port, true));
  }
  if (options.insecure_loopback)
    IVY_CHECK(listen_tcp({"127.0.0.1", "::1"}, *options.insecure_loopback, false));
  return {};
}

// On hosts without IPv6 the second address is left out; the first one must work.
Result<void> AgentServer::listen_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
                                     bool with_tls) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    auto acceptor =
        with_tls
            ? Acceptor::listen_tls(loop_, addresses[i], port, handshakes_, limits_, *tls_intake_)
            : Acceptor::listen_plaintext(loop_, addresses[i], port, limits_, *plain_intake_);
    if (!acceptor.ok()) {
      if (i > 0 && acceptor.error().code != Code::kAlreadyExists) continue;
      return acceptor.error();
    }
    if (port == 0) port = (*acceptor)->port();
    acceptors_.push_back(std::move(*acceptor));
  }
  return {};
}

AgentServer::~AgentServer() {
  stop_accepting();
  shut_down(std::chrono::milliseconds(0));
}

std::vector<std::string> AgentServer::addresses() const {
  std::vector<std::string> result;
  for (const auto& acceptor : acceptors_) result.push_back(acceptor->address());
  return result;
}

std::uint16_t AgentServer::port() const {
  for (const auto& acceptor : acceptors_)
    if (acceptor->port() != 0) return acceptor->port();
  return 0;
}

void AgentServer::stop_accepting() { acceptors_.clear(); }

void AgentServer::shut_down(std::chrono::milliseconds timeout) {
  if (server_ != nullptr) server_->Shutdown(system_now() + timeout);
}

}  // namespace ivy
