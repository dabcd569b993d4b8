// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_channel.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <boost/asio/post.hpp>
#include <mutex>

#include "launcher/links/transport_context.h"
#include "proto/contract/log.h"
#include "proto/contract/status.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// gRPC sends a ping after kKeepaliveMs of silence, and closes the connection if the answer takes
// longer than kKeepaliveTimeoutMs: a line of 256 kbit/s with full buffers needs tens of seconds.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 120'000;
// Limit of a received message. The agent sends data in messages of at most 64 KiB, and short lists.
constexpr int kMaxMessageBytes = 4 << 20;

void log_line(gpr_log_func_args* line) { log::debug(std::string("gRPC: ") + line->message); }

// Prepares gRPC, once, before the first channel. gRPC would otherwise write to standard error. In
// Debian's build, its mutexes check for lock cycles, which costs 2 % of a launch and aborts when
// one is found.
void initialize_grpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    gpr_set_log_function(log_line);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  });
}

// Keeps the first channel of the process until exit, to prevent a deadlock: the thread that
// releases the last channel joins gRPC's callback threads, and it may be one of them, because the
// end of a call runs there and may hold the last reference. The kept channel is idle once its host
// is done.
std::shared_ptr<grpc::Channel> keep_first(std::shared_ptr<grpc::Channel> channel) {
  static const auto* const kept = new std::shared_ptr<grpc::Channel>(channel);
  // A pointer that nobody reads would be optimized away, and LeakSanitizer would find the channel.
  IVY_ASSERT(*kept != nullptr);
  return channel;
}

grpc::ChannelArguments arguments() {
  grpc::ChannelArguments result;
  // Each dial makes a connection of its own, so that none waits for the back-off of another.
  result.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The channel connects to this address only: no proxy, no service configuration from a name
  // server, no hidden retries.
  result.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  result.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  result.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  result.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  result.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  result.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  result.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return result;
}

// The :authority of HTTP/2. A scope means nothing to the other end, so it is removed.
std::string authority_of(const std::string& address, std::uint16_t port) {
  return with_port(address.substr(0, address.find('%')), port);
}

}  // namespace

Result<std::shared_ptr<AgentChannel>> AgentChannel::over_tls(TransportContext& context,
                                                             const AgentIdentity& own_identity,
                                                             const std::string& host_name,
                                                             const std::string& address,
                                                             std::uint16_t port) {
  initialize_grpc();
  AgentConnections& connections = *context.part<AgentConnections>();
  if (!connections.tunnels)
    connections.tunnels = std::make_shared<AgentTunnels>(IVY_TRY(AgentTls::make(own_identity)));
  const AgentTunnels::Dialled dialled =
      IVY_TRY(connections.tunnels->dial(host_name, address, port));
  auto channel = std::make_shared<AgentChannel>();
  channel->dialled_ = dialled;
  channel->channel_ = keep_first(grpc::CreateCustomInsecureChannelFromFd(
      authority_of(address, port), dialled.socket, arguments()));
  return channel;
}

std::shared_ptr<AgentChannel> AgentChannel::over_unix(const std::string& path) {
  initialize_grpc();
  auto channel = std::make_shared<AgentChannel>();
  channel->channel_ = keep_first(
      grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments()));
  return channel;
}

bool AgentChannel::is_connected() const {
  return dialled_ ? dialled_->shared_state->snapshot().is_connected
                  : channel_->GetState(false) == GRPC_CHANNEL_READY;
}

std::optional<Error> AgentChannel::rejection() const {
  return dialled_ ? dialled_->shared_state->snapshot().verdict.rejection : std::nullopt;
}

bool AgentChannel::is_verified() const {
  return dialled_ && dialled_->shared_state->snapshot().verdict.is_verified;
}

AgentStatus AgentChannel::explain(AgentStatus status) const {
  if (!dialled_ || status.code == 0) return status;
  const AgentTunnel::State state = dialled_->shared_state->snapshot();
  if (state.is_connected || state.failure.empty()) return status;
  status.code = static_cast<int>(Code::kUnavailable);
  status.message = state.failure;
  return status;
}

void AgentChannel::give_up() {
  if (!dialled_ || is_connected()) return;
  boost::asio::post(*dialled_->loop, [weak = dialled_->tunnel] {
    if (const std::shared_ptr<AgentTunnel> tunnel = weak.lock()) tunnel->give_up();
  });
}

}  // namespace ivy
