// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_link.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_put.h"
#include "launcher/links/agent/agent_request.h"
#include "proto/contract/text_columns.h"
#include "proto/os/clock.h"

namespace ivy {
namespace asio = boost::asio;

namespace {

// Time for the agent at one address to answer if there are others to try.
constexpr std::chrono::milliseconds kAnswerOfMany{3'000};
// An agent receives 16 bundles at a time. If it rejects another one, the request is repeated 60
// times, every half second, which is longer than a slow transfer takes. Most often, another
// launcher has sent the same bundle by then.
constexpr int kMaxBusyPuts = 60;
constexpr std::chrono::milliseconds kBusyPause{500};
// Pause before the next request to an agent that waits for a file system.
constexpr std::chrono::milliseconds kWaitingPause{1'000};

// Picks the most informative of the failures of a name's addresses: a refused connection proves
// that the host is up.
LinkDown most_informative_of(const std::vector<LinkDown>& failures) {
  LinkDown down = failures.back();
  for (const LinkDown& failure : failures) {
    if (failure.failure == LinkFailure::kRefused) down = failure;
  }
  down.message = {};
  for (const LinkDown& failure : failures) {
    down.message += (down.message.empty() ? "" : "; ") + failure.message;
  }
  return down;
}

}  // namespace

AgentLink::AgentLink(std::shared_ptr<TransportContext> context, Host host, Route route,
                     std::chrono::milliseconds answer, HostLinkEvents& owner)
    : SequencedLink(context->loop(), owner),
      context_(std::move(context)),
      host_(std::move(host)),
      route_(route),
      answer_limit_(answer) {}

AgentLink::~AgentLink() { close(); }

void AgentLink::open(const OpenRequest& request) {
  request_ = request;
  sequence_.start(run());
}

Awaitable<void> AgentLink::run() {
  const LinkDown down = co_await connect();
  fail(down);
}

// Runs from the first address to the end of the connection.
Awaitable<LinkDown> AgentLink::connect() {
  endpoint_.host = host_.name;
  endpoint_.redial = request_.reattach || request_.again;
  if (const Result<void> ready = prepare(); !ready.ok())
    co_return LinkDown::from(LinkFailure::kAuthentication, ready.error());
  const Result<std::shared_ptr<NodeUpload>> upload = co_await context_->node_upload(sequence_);
  if (!upload.ok()) co_return LinkDown::from(LinkFailure::kBootstrap, upload.error());
  bundle_name_ = (*upload)->name();
  if (route_ == Route::kOwnHost) co_return co_await open_job();
  handshake_slot_ = co_await context_->handshakes().acquire(sequence_);
  const Result<Addresses> addresses =
      co_await addresses_of(sequence_, context_->resolvers(), host_.name);
  if (!addresses.ok()) co_return LinkDown::from(LinkFailure::kUnresolved, addresses.error());
  co_return co_await try_addresses(*addresses);
}

// Finds out everything that needs no connection.
Result<void> AgentLink::prepare() {
  if (route_ != Route::kOwnHost) {
    own_identity_ = IVY_TRY(context_->agent_user());
    endpoint_.self = "user/" + own_identity_->self.name + " serial " + own_identity_->self.serial;
    endpoint_.port = host_.port == 0 ? own_identity_->port : host_.port;
    if (!host_.user.empty() && host_.user != own_identity_->self.name) {
      return Error{Code::kPermissionDenied,
                   "agents run workers as the user named in the certificate: as " +
                       own_identity_->self.name + ", not as " + host_.user,
                   "leave out " + host_.user + "@, or use --transport ssh"};
    }
  }
  if (route_ == Route::kOwnHost) {
    endpoint_.socket = IVY_TRY(context_->agent_socket());
    std::shared_ptr<AgentChannel>& shared = context_->part<AgentConnections>()->to_this_host;
    if (!shared) shared = AgentChannel::over_unix(endpoint_.socket);
    channel_ = shared;
  }
  return {};
}

Awaitable<LinkDown> AgentLink::try_addresses(Addresses addresses) {
  std::vector<LinkDown> failures;
  for (const std::string& address : addresses) {
    co_await report_progress(agent_step("agent: connecting to " + address));
    if (const Result<void> dialled = dial(address); !dialled.ok())
      co_return LinkDown::from(LinkFailure::kAuthentication, dialled.error());
    has_other_addresses_ = &address != &addresses.back();
    const LinkDown down = co_await open_job();
    // If an address got further than a failed connection, its result is final.
    if (endpoint_.opened || !is_about_the_address(down.failure)) co_return down;
    failures.push_back(down);
    if (!has_other_addresses_) break;
  }
  co_return most_informative_of(failures);
}

Result<void> AgentLink::dial(const std::string& address) {
  endpoint_.address = address;
  if (channel_) channel_->give_up();
  channel_ = IVY_TRY(AgentChannel::over_tls(*context_, *own_identity_, host_.name,
                                            endpoint_.address, endpoint_.port));
  return {};
}

// Opens the job, and returns when the stream has ended. If the agent lacks the bundle, sends it
// once and opens the job again.
Awaitable<LinkDown> AgentLink::open_job() {
  bool has_put = false;
  for (int busy = 0;;) {
    if (const Result<void> started = start_stream(); !started.ok())
      co_return LinkDown::from(LinkFailure::kBootstrap, started.error());
    const AgentStatus status = co_await stream_end();
    const LinkDown down = agent_failure(endpoint(), channel_->explain(status));
    leave_stream();
    // --start-timeout and the lease limit these requests.
    if (!endpoint_.opened && !status.wait.empty()) {
      co_await report_progress(agent_step("agent: waiting for " + status.wait));
      co_await sequence_.sleep(kWaitingPause);
      continue;
    }
    const bool lacks_bundle =
        status.code == static_cast<int>(Code::kFailedPrecondition) && !status.need.empty();
    if (endpoint_.opened || !lacks_bundle || has_put) co_return down;
    bool is_busy = false;
    const std::optional<LinkDown> failed = co_await send_bundle(status.need, is_busy);
    if (failed && (!is_busy || ++busy > kMaxBusyPuts)) co_return *failed;
    has_put = !failed;
    if (has_put) continue;
    co_await report_progress(
        sending_step("agent: waiting while it receives ivy-node from other jobs"));
    co_await sequence_.sleep(kBusyPause);
  }
}

Result<void> AgentLink::start_stream() {
  agent::v1::OpenJob job;
  job.set_job_id(request_.job_id);
  job.set_host(request_.host);
  job.set_reattach(request_.reattach);
  *job.mutable_job() = job_description(context_->options());
  job.set_bundle(bundle_name_);
  stream_ = std::make_unique<AgentStream>(context_->loop(), channel_, job, *this);
  return {};
}

Awaitable<AgentStatus> AgentLink::stream_end() {
  const auto listen = [this](const auto& arrive) { stream_event_ = arrive; };
  endpoint_.timed_out = false;
  std::optional<AgentStatus> ended = co_await first_answer();
  if (!ended) ended = co_await sequence_.wait<std::optional<AgentStatus>>(listen);
  co_return *ended;
}

// Returns nullopt when the job is open.
Awaitable<std::optional<AgentStatus>> AgentLink::first_answer() {
  const auto listen = [this](const auto& arrive) { stream_event_ = arrive; };
  const auto limit = has_other_addresses_ ? std::min(answer_limit_, kAnswerOfMany) : answer_limit_;
  auto answer = co_await sequence_.wait_at_most<std::optional<AgentStatus>>(limit, listen);
  // After the handshake the agent gets more time, because it may start a supervisor on a busy host.
  if (!answer && channel_->is_connected())
    answer = co_await sequence_.wait_at_most<std::optional<AgentStatus>>(kAgentAnswer, listen);
  if (answer) co_return *answer;
  endpoint_.timed_out = true;
  co_return AgentStatus{static_cast<int>(Code::kDeadlineExceeded), "no answer", {}, {}};
}

void AgentLink::stream_opened(const agent::v1::Opened& opened) {
  if (endpoint_.opened) return;
  endpoint_.opened = true;
  endpoint_.connected = true;
  handshake_slot_.reset();
  stream_event_(std::nullopt);
  const std::string warning =
      host_expiry_warning(host_.name, opened.certificate_expires_at(), wall_s());
  if (!warning.empty() && !endpoint_.redial) context_->note("agent expiry", "warning: " + warning);
  LinkUp up;
  up.transport = Transport::kAgent;
  up.peer_address = endpoint_.address;
  if (!endpoint_.address.empty()) up.local_address = own_address_towards(endpoint_.address);
  reports_.up(up);
}

void AgentLink::stream_bytes(const std::string& bytes) {
  if (!endpoint_.opened) {
    return fail(LinkDown{LinkFailure::kBootstrap,
                         describe(endpoint()) + " sent data before it opened the job",
                         "check that it runs the same version of ivy-agent"});
  }
  take_relayed(greeting_, bytes);
}

void AgentLink::send_alive(std::string_view frame) {
  const std::lock_guard lock(stream_mutex_);
  if (stream_) stream_->write_alive(frame);
}

void AgentLink::write(std::string bytes) {
  if (stream_) stream_->write(std::move(bytes));
}

AgentEndpoint AgentLink::endpoint() const {
  AgentEndpoint here = endpoint_;
  here.connected = endpoint_.connected || channel_->is_connected();
  if (route_ == Route::kDirect) {
    here.rejection = channel_->rejection();
    here.is_verified = channel_->is_verified();
  }
  return here;
}

LinkStep AgentLink::agent_step(RemoteText text) const {
  return {std::move(text), "see the log of its agent (journalctl -u 'ivy-agent@*' on " +
                               host_.name + "), or allow more time: --start-timeout"};
}

// Returns nullopt when the agent has the bundle. is_busy: the agent receives too many others
// now.
Awaitable<std::optional<LinkDown>> AgentLink::send_bundle(std::string architecture, bool& is_busy) {
  if (request_.reattach) {
    // This build was removed from the host, so no supervisor of it runs there.
    co_return LinkDown{LinkFailure::kNoSuchJob, "ivy-node has been removed from the host", ""};
  }
  const Result<NodeBundle> bundle = co_await context_->bundle(sequence_, architecture);
  if (!bundle.ok()) co_return LinkDown::from(LinkFailure::kBootstrap, bundle.error());
  const AgentStatus status = co_await put(architecture, *bundle);
  if (status.code == 0) co_return std::nullopt;
  is_busy = status.code == static_cast<int>(Code::kAborted);
  // The agent has exited; the advice about free space below does not fit.
  if (status.code == static_cast<int>(Code::kUnavailable))
    co_return agent_failure(endpoint(), status);
  co_return LinkDown{
      LinkFailure::kBootstrap,
      "ivy-node cannot be installed there: " + describe(endpoint()) + ": " + status.message,
      "on " + host_.name + ", ~/.cache/ivyrun needs free space and must allow programs to run"};
}

Awaitable<AgentStatus> AgentLink::put(std::string architecture, NodeBundle bundle) {
  const std::string all = mebibytes(bundle.archive().size());
  co_await report_progress(sending_step("agent: sending ivy-node (" + all + ")"));
  const auto begin = [&](const Arrival<AgentStatus>& arrive) {
    put_ = std::make_unique<AgentPut>(context_->loop(), channel_, bundle_name_, architecture,
                                      bundle, reports_, arrive);
  };
  const AgentStatus status = co_await sequence_.wait<AgentStatus>(begin);
  asio::post(context_->loop(), [done = std::shared_ptr<AgentPut>(std::move(put_))] {});
  co_return status;
}

// In a later turn: a stream must not be destroyed inside one of its own events.
void AgentLink::leave_stream() {
  if (!stream_) return;
  stream_->close();
  const std::lock_guard lock(stream_mutex_);
  asio::post(context_->loop(), [old = std::shared_ptr<AgentStream>(std::move(stream_))] {});
}

void AgentLink::release() {
  sequence_.stop();
  leave_stream();
  put_.reset();
  if (route_ == Route::kDirect && channel_) channel_->give_up();
  handshake_slot_.reset();
}

}  // namespace ivy
