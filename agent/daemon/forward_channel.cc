#include "agent/daemon/forward_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <boost/system/error_code.hpp>
#include <charconv>
#include <ctime>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "proto/agent_config.h"

namespace ivy {
namespace {

using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr std::size_t kMaxPemBytes = 4u << 20;
// Hundreds of streams of one job begin within a second: one look at the files is enough for them.
constexpr std::chrono::seconds kLookAtFilesEvery{1};
// As the launcher's own connections: a slow line with full buffers is not a dead one.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 120'000;
// A host that does not answer is given up after this; the launcher dials again.
constexpr int kConnectMs = 5'000;
constexpr int kLongestBackoffMs = 1'000;
constexpr int kMaxMessageBytes = 4 << 20;
constexpr std::chrono::minutes kLookForIdleEvery{1};

Result<std::string> read_pem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.str().empty() || text.str().size() > kMaxPemBytes)
    return Error{Code::kFailedPrecondition, "cannot read " + path, "agent.toml names this file"};
  return text.str();
}

Result<ForwardIdentity> identity_of(const Environment& environment) {
  const Result<std::optional<AgentConfig>> config = load_agent_config(environment);
  if (!config.ok()) return config.error();
  if (!*config)
    return Error{Code::kFailedPrecondition,
                 "this agent's user has no agent.toml, so it cannot reach other agents",
                 "ivy-agent cert --user NAME writes it"};
  const AgentConfig& files = **config;
  ForwardIdentity us;
  us.anchor.ca_pem = IVY_TRY(read_pem(files.ca));
  if (!files.revoked.empty()) us.anchor.crl_pem = IVY_TRY(read_pem(files.revoked));
  us.certificate_pem = IVY_TRY(read_pem(files.certificate));
  us.key_pem = IVY_TRY(read_pem(files.key));
  const Result<CertificateIdentity> self = read_certificate(us.certificate_pem);
  if (!self.ok()) return self.error().context(files.certificate);
  us.self = *self;
  return us;
}

Result<void> check_far_end(const ForwardIdentity& us, const std::string& name,
                           const std::string& chain) {
  const CertificateIdentity agent = IVY_TRY(verify_certificate(
      chain, us.anchor, CertificateRole::kHost, static_cast<std::int64_t>(std::time(nullptr))));
  IVY_CHECK(check_host_name(agent, name));
  if (agent.serves.empty() || agent.serves == us.self.name) return {};
  return Error{Code::kPermissionDenied,
               "host/" + agent.name + " serves " + agent.serves + ", not " + us.self.name};
}

std::string text_of(grpc::string_ref reference) { return {reference.data(), reference.size()}; }

// A scope's percent sign would be taken for an escape.
std::string uri_of(const ForwardTarget& target) {
  const std::string suffix = ":" + std::to_string(target.port);
  if (target.address.find(':') == std::string::npos) return "ipv4:" + target.address + suffix;
  std::string address = target.address;
  if (const std::size_t scope = address.find('%'); scope != std::string::npos)
    address.replace(scope, 1, "%25");
  return "ipv6:[" + address + "]" + suffix;
}

grpc::ChannelArguments channel_arguments(const std::string& name) {
  grpc::ChannelArguments arguments;
  // What is asked for in the handshake; gRPC would say the address, and log that it does not fit.
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
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return arguments;
}

}  // namespace

Result<ForwardTarget> parse_forward_target(const std::string& text) {
  const Error malformed{Code::kInvalidArgument, "a target is \"NAME ADDRESS:PORT\""};
  const std::size_t blank = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (blank == std::string::npos || blank == 0 || colon == std::string::npos || colon < blank)
    return malformed;
  ForwardTarget target;
  target.name = text.substr(0, blank);
  std::string address = text.substr(blank + 1, colon - blank - 1);
  const bool has_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (has_brackets) address = address.substr(1, address.size() - 2);
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, target.port);
  const std::string plain = address.substr(0, address.find('%'));
  const bool is_ipv6 = plain.find(':') != std::string::npos;
  if (parsed.ec != std::errc() || parsed.ptr != end || target.port == 0 ||
      canonical_address(plain).empty() || is_ipv6 != has_brackets)
    return malformed;
  target.address = address;
  return target;
}

bool ForwardIdentity::operator==(const ForwardIdentity& other) const {
  return certificate_pem == other.certificate_pem && key_pem == other.key_pem &&
         anchor.ca_pem == other.anchor.ca_pem && anchor.crl_pem == other.anchor.crl_pem;
}

// ---- One connection -----------------------------------------------------------------------------

// The one that decides: gRPC's own checks of chain and name give no reasons and are off. Called on
// gRPC's threads at the end of a handshake, before a byte of any call leaves.
class ForwardChannel::Verifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  Verifier(ForwardIdentity us, std::string name, std::shared_ptr<Verdict> verdict)
      : us_(std::move(us)), name_(std::move(name)), verdict_(std::move(verdict)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::string chain = text_of(request->peer_cert_full_chain());
    if (chain.empty()) chain = text_of(request->peer_cert());
    const Result<void> checked = check_far_end(us_, name_, chain);
    const std::lock_guard lock(verdict_->mutex);
    verdict_->refusal.reset();
    if (!checked.ok()) {
      verdict_->refusal = checked.error();
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, checked.error().message);
    }
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const ForwardIdentity us_;
  const std::string name_;
  const std::shared_ptr<Verdict> verdict_;
};

ForwardChannel::ForwardChannel(const ForwardTarget& target, const ForwardIdentity& us) {
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
  channel_ = grpc::CreateCustomChannel(uri_of(target), tls::TlsCredentials(options),
                                       channel_arguments(target.name));
}

std::optional<Error> ForwardChannel::refusal() const {
  const std::lock_guard lock(verdict_->mutex);
  return verdict_->refusal;
}

// Streams that are under way have the gRPC channel from their stubs.
void ForwardChannel::give_up_unless_connected() {
  if (channel_ && channel_->GetState(false) != GRPC_CHANNEL_READY) channel_.reset();
}

// ---- All of them --------------------------------------------------------------------------------

ForwardChannels::ForwardChannels(boost::asio::io_context& loop, Environment environment)
    : environment_(std::move(environment)), minute_(loop) {}

Result<void> ForwardChannels::load_identity() {
  const Clock::time_point now = Clock::now();
  if (us_ && now - loaded_ < kLookAtFilesEvery) return {};
  ForwardIdentity us = IVY_TRY(identity_of(environment_));
  loaded_ = now;
  if (us_ && *us_ == us) return {};
  // Streams that are under way keep the channels that they have.
  channels_.clear();
  us_ = std::move(us);
  return {};
}

Result<std::shared_ptr<ForwardChannel>> ForwardChannels::take(const std::string& target) {
  IVY_CHECK(load_identity());
  const Clock::time_point now = Clock::now();
  const auto found = channels_.find(target);
  if (found != channels_.end() && !found->second.channel->is_given_up()) {
    found->second.used = now;
    return found->second.channel;
  }
  const ForwardTarget parsed = IVY_TRY(parse_forward_target(target));
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

// Those that nobody holds but us.
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
    // The time runs from the last stream's end, which nobody tells us: from when it was seen.
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
