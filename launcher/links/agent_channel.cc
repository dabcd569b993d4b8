#include "launcher/links/agent_channel.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <ctime>

#include "proto/agent_target.h"
#include "proto/log.h"

namespace ivy {
namespace {

using grpc::experimental::TlsCustomVerificationCheckRequest;

// A ping after so much silence of the transport; the connection is given up when its answer takes
// longer than the second: a line of 256 kbit/s with full buffers needs tens of seconds.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 120'000;
// The agent sends data messages of at most 64 KiB, and short lists.
constexpr int kMaxMessageBytes = 4 << 20;

std::string text_of(grpc::string_ref reference) { return {reference.data(), reference.size()}; }

void log_line(gpr_log_func_args* line) { log::debug(std::string("gRPC: ") + line->message); }

// Once, before the first channel. gRPC writes to standard error otherwise; and its mutexes, as
// Debian builds them, look for lock cycles, which costs a fiftieth of a launch and would abort.
void calm_grpc() {
  static const bool once = [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    gpr_set_log_function(log_line);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    return true;
  }();
  (void)once;
}

// gRPC's threads for callbacks end with the last channel, and whoever lets go of it waits for them:
// a call that ends last, on one of these threads, would wait for itself. The first channel of the
// process (idle, once its host is done) stays until exit and prevents that.
std::shared_ptr<grpc::Channel> keep_first(std::shared_ptr<grpc::Channel> channel) {
  static const auto* const kept = new std::shared_ptr<grpc::Channel>(channel);
  (void)kept;
  return channel;
}

grpc::ChannelArguments arguments() {
  grpc::ChannelArguments result;
  // A dial is a connection of its own: nobody waits for another one's back-off.
  result.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The address is the one that was asked for: no proxy, no service configuration from a name
  // server, no second try behind our back.
  result.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  result.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  result.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  result.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  result.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  result.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  result.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return result;
}

}  // namespace

// Called on gRPC's threads, at the end of a handshake; answers at once.
class AgentChannel::Verifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  Verifier(AgentIdentity us, std::string asked, std::shared_ptr<Verdict> verdict)
      : us_(std::move(us)), asked_(std::move(asked)), verdict_(std::move(verdict)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::string chain = text_of(request->peer_cert_full_chain());
    if (chain.empty()) chain = text_of(request->peer_cert());
    const Result<CertificateIdentity> agent = check_agent(us_, asked_, chain, std::time(nullptr));
    const std::lock_guard lock(verdict_->mutex);
    verdict_->believes = agent.ok();
    if (agent.ok()) {
      verdict_->refusal.reset();
    } else {
      verdict_->refusal = agent.error();
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, agent.error().message);
    }
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const AgentIdentity us_;
  const std::string asked_;
  const std::shared_ptr<Verdict> verdict_;
};

std::shared_ptr<AgentChannel> AgentChannel::over_tls(const AgentIdentity& us,
                                                     const std::string& asked,
                                                     const std::string& address,
                                                     std::uint16_t port) {
  namespace tls = grpc::experimental;
  calm_grpc();
  auto channel = std::make_shared<AgentChannel>();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      us.anchor.ca_pem, std::vector<tls::IdentityKeyCertPair>{{us.key_pem, us.certificate_pem}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<Verifier>(us, asked, channel->verdict_));
  channel->channel_ = keep_first(grpc::CreateCustomChannel(
      grpc_target(address, port), tls::TlsCredentials(options), arguments()));
  return channel;
}

std::shared_ptr<AgentChannel> AgentChannel::over_unix(const std::string& path) {
  calm_grpc();
  auto channel = std::make_shared<AgentChannel>();
  channel->channel_ = keep_first(
      grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments()));
  return channel;
}

bool AgentChannel::is_connected() const { return channel_->GetState(false) == GRPC_CHANNEL_READY; }

std::optional<Error> AgentChannel::refusal() const {
  const std::lock_guard lock(verdict_->mutex);
  return verdict_->refusal;
}

bool AgentChannel::believes() const {
  const std::lock_guard lock(verdict_->mutex);
  return verdict_->believes;
}

}  // namespace ivy
