#include "agent/daemon/forward_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <boost/system/error_code.hpp>
#include <ctime>
#include <functional>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

using grpc::experimental::TlsCustomVerificationCheckRequest;

// Hundreds of streams of one job begin within a second: one check of the files serves them all.
constexpr std::chrono::seconds kLookAtFilesEvery{1};
// As for the launcher's own connections: a slow line with full buffers is not a dead one.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 120'000;
// A connection attempt is given up after this; the launcher dials again.
constexpr int kConnectMs = 5'000;
constexpr int kLongestBackoffMs = 1'000;
constexpr int kMaxForwardedBytes = 4 << 20;
constexpr std::chrono::minutes kLookForIdleEvery{1};
// Within this time only the clock could change a verdict: when our files change, the connection
// ends. A judgement costs 0.4 ms of the loop's thread for each host of a job.
constexpr std::chrono::seconds kJudgedFor{60};

Result<AgentIdentity> identity_of(const Environment& environment) {
  Result<std::optional<AgentIdentity>> us = load_agent_identity(environment, wall_s());
  if (!us.ok()) return us.error();
  if (*us) return *std::move(*us);
  return Error{Code::kFailedPrecondition,
               "this agent's user has no agent.toml, so it cannot reach other agents",
               "ivy-agent cert --user NAME writes it"};
}

bool is_the_same(const AgentIdentity& a, const AgentIdentity& b) {
  return a.certificate_pem == b.certificate_pem && a.key_pem == b.key_pem &&
         a.anchor.ca_pem == b.anchor.ca_pem && a.anchor.crl_pem == b.anchor.crl_pem;
}

std::string text_of(grpc::string_ref reference) { return {reference.data(), reference.size()}; }

grpc::ChannelArguments channel_arguments(const std::string& name) {
  grpc::ChannelArguments arguments;
  // The name to request in the handshake; gRPC would send the address, and log that it does not
  // fit.
  arguments.SetSslTargetNameOverride(name);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // A kept connection must be known to be alive before it is needed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestBackoffMs);
  arguments.SetMaxReceiveMessageSize(kMaxForwardedBytes);
  return arguments;
}

}  // namespace

Result<CertificateIdentity> ForwardChannel::Verdict::judge(const AgentIdentity& us,
                                                           const std::string& name,
                                                           std::int64_t now_unix_s) {
  Result<CertificateIdentity> agent = check_agent(us, name, chain, now_unix_s);
  judged_at = now_unix_s;
  not_after = agent.ok() ? agent->not_after : 0;
  return agent;
}

// Decides about the far certificate: gRPC's own checks of chain and name give no reasons and are
// off. Called on gRPC's threads at the end of a handshake, before a byte of any call leaves.
class ForwardChannel::Verifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  Verifier(AgentIdentity us, std::string name, std::shared_ptr<Verdict> verdict)
      : us_(std::move(us)), name_(std::move(name)), verdict_(std::move(verdict)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::string chain = text_of(request->peer_cert_full_chain());
    if (chain.empty()) chain = text_of(request->peer_cert());
    const std::lock_guard lock(verdict_->mutex);
    verdict_->chain = std::move(chain);
    const Result<CertificateIdentity> checked = verdict_->judge(us_, name_, wall_s());
    verdict_->refusal.reset();
    if (!checked.ok()) {
      verdict_->refusal = checked.error();
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, checked.error().message);
    }
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const AgentIdentity us_;
  const std::string name_;
  const std::shared_ptr<Verdict> verdict_;
};

ForwardChannel::ForwardChannel(const AgentTarget& target, const AgentIdentity& us)
    : name_(target.name) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      us.anchor.ca_pem, std::vector<tls::IdentityKeyCertPair>{{us.key_pem, us.certificate_pem}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<Verifier>(us, target.name, verdict_));
  channel_ =
      grpc::CreateCustomChannel(grpc_target(target.address, target.port),
                                tls::TlsCredentials(options), channel_arguments(target.name));
}

std::optional<Error> ForwardChannel::refusal() const {
  const std::lock_guard lock(verdict_->mutex);
  return verdict_->refusal;
}

bool ForwardChannel::is_believed_at(const AgentIdentity& us, std::int64_t now_unix_s) const {
  const std::lock_guard lock(verdict_->mutex);
  if (verdict_->chain.empty()) return true;
  const std::int64_t age_s = now_unix_s - verdict_->judged_at;
  const bool is_fresh = age_s >= 0 && age_s < kJudgedFor.count();
  if (is_fresh && now_unix_s <= verdict_->not_after) return true;
  return verdict_->judge(us, name_, now_unix_s).ok();
}

// Streams under way hold the gRPC channel through their stubs.
void ForwardChannel::give_up_unless_connected() {
  if (channel_ && channel_->GetState(false) != GRPC_CHANNEL_READY) channel_.reset();
}

ForwardChannels::ForwardChannels(boost::asio::io_context& loop, Environment environment)
    : environment_(std::move(environment)), minute_(loop) {}

Result<void> ForwardChannels::load_identity() {
  const Clock::time_point now = Clock::now();
  if (us_ && now - loaded_ < kLookAtFilesEvery) return {};
  AgentIdentity us = IVY_TRY(identity_of(environment_));
  loaded_ = now;
  if (us_ && is_the_same(*us_, us)) return {};
  // Streams under way keep their channels.
  channels_.clear();
  us_ = std::move(us);
  return {};
}

Result<std::shared_ptr<ForwardChannel>> ForwardChannels::take(const std::string& target) {
  IVY_CHECK(load_identity());
  const Clock::time_point now = Clock::now();
  const auto found = channels_.find(target);
  // A certificate that was valid when the connection was made may have expired since: then connect
  // again and judge the certificate that the far agent shows now.
  if (found != channels_.end() && !found->second.channel->is_given_up() &&
      found->second.channel->is_believed_at(*us_, wall_s())) {
    found->second.used = now;
    return found->second.channel;
  }
  const AgentTarget parsed = IVY_TRY(parse_agent_target(target));
  if (channels_.size() >= kMaxChannels) drop_idle(now);
  if (channels_.size() >= kMaxChannels)
    return Error{Code::kResourceExhausted, "this agent keeps connections to " +
                                               std::to_string(kMaxChannels) +
                                               " others, and all are in use"};
  const auto channel = std::make_shared<ForwardChannel>(parsed, *us_);
  if (channels_.empty()) wait_for_a_minute();
  channels_[target] = Kept{channel, now};
  return channel;
}

// Drops the channels that have no other owner.
void ForwardChannels::drop_idle(Clock::time_point used_before) {
  std::erase_if(channels_, [&](const auto& entry) {
    const Kept& kept = entry.second;
    return kept.channel->is_given_up() ||
           (kept.channel.use_count() == 1 && kept.used <= used_before);
  });
}

void ForwardChannels::wait_for_a_minute() {
  minute_.expires_after(kLookForIdleEvery);
  minute_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    // Idle time should count from the last stream's end, which is not reported to us: it counts
    // from the last check that saw the channel in use.
    for (auto& [target, kept] : channels_) {
      if (kept.channel.use_count() > 1) kept.used = Clock::now();
    }
    drop_idle(Clock::now() - kIdle);
    if (!channels_.empty()) wait_for_a_minute();
  });
}

void ForwardChannels::close() {
  minute_.cancel();
  channels_.clear();
}

}  // namespace ivy
