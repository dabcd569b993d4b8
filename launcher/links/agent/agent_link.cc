#include "launcher/links/agent/agent_link.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_put.h"
#include "launcher/links/agent/agent_request.h"
#include "launcher/links/agent/agent_stream.h"
#include "launcher/links/remote_entry.h"
#include "proto/contract/log.h"
#include "proto/trust/agent_target.h"

namespace ivy {
namespace asio = boost::asio;

namespace {

// Time for an address to answer when there are others to try.
constexpr std::chrono::milliseconds kAnswerOfMany{3'000};
// An agent takes 16 bundles at once. A launcher that finds it crowded asks again, most often to
// hear that another launcher has sent the same bundle: 60 times, half a second apart, which
// outlasts a slow transfer.
constexpr int kMostCrowdedPuts = 60;
constexpr std::chrono::milliseconds kCrowdedPause{500};

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

// Picks the failure that says most about the addresses of one name: a refusal proves a living host.
LinkDown worst_of(const std::vector<LinkDown>& failures) {
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

AgentLink::AgentLink(std::shared_ptr<CarrierContext> context, Host host, Way way,
                     std::chrono::milliseconds answer, Handlers handlers)
    : context_(std::move(context)),
      host_(std::move(host)),
      way_(way),
      answer_limit_(answer),
      handlers_(std::move(handlers)),
      timer_(context_->loop()) {}

AgentLink::~AgentLink() { close(); }

void AgentLink::open(const OpenRequest& request) {
  request_ = request;
  place_.host = host_.name;
  place_.redial = request.reattach || request.again;
  if (const Result<void> ready = prepare(); !ready.ok()) {
    const LinkDown down = LinkDown::from(LinkFailure::kAuthentication, ready.error());
    return post([this, down] { fail(down); });
  }
  if (way_ == Way::kOwnHost) return post([this] { open_stream(); });
  context_->handshakes().acquire(alive_, [this, alive = alive_](Slots::Ticket ticket) {
    if (!*alive) return;
    place_among_handshakes_ = std::move(ticket);
    look_up();
  });
}

// Everything that can be known without dialling.
Result<void> AgentLink::prepare() {
  if (way_ != Way::kOwnHost) {
    const Result<std::optional<AgentIdentity>>& identity = context_->agent_identity();
    if (!identity.ok()) return identity.error();
    if (!*identity) {
      return Error{Code::kNotFound, "no agent is configured: there is no agent.toml",
                   "whoever has the CA makes it: ivy-agent cert --user NAME"};
    }
    us_ = &**identity;
    place_.self = "user/" + us_->self.name + " serial " + us_->self.serial;
    place_.port = host_.port == 0 ? us_->port : host_.port;
    if (!host_.user.empty() && host_.user != us_->self.name) {
      return Error{Code::kPermissionDenied,
                   "an agent runs workers as the user of its certificate: as " + us_->self.name +
                       ", not as " + host_.user,
                   "leave " + host_.user + "@ away, or: --transport ssh"};
    }
  }
  if (way_ != Way::kDirect) {
    place_.socket = IVY_TRY(context_->agent_socket());
    channel_ = context_->agent_socket_channel();
    if (!channel_) {
      channel_ = AgentChannel::over_unix(place_.socket);
      context_->keep_agent_socket_channel(channel_);
    }
  }
  return {};
}

void AgentLink::look_up() {
  if (is_numeric_address(host_.name)) {
    addresses_ = {host_.name};
    return next_address();
  }
  lookup_ = std::make_shared<AddressLookup>(context_->loop());
  lookup_->start(context_->resolvers(), host_.name,
                 [this](const Result<std::vector<std::string>>& addresses) {
                   if (!addresses.ok()) {
                     return fail(LinkDown::from(LinkFailure::kUnresolved, addresses.error()));
                   }
                   addresses_ = *addresses;
                   next_address();
                 });
}

void AgentLink::next_address() {
  place_.address = addresses_[next_++];
  handlers_.progress("agent: connecting to " + place_.address);
  if (way_ == Way::kDirect) {
    if (channel_) channel_->give_up();
    Result<std::shared_ptr<AgentChannel>> channel =
        AgentChannel::over_tls(*context_, *us_, host_.name, place_.address, place_.port);
    if (!channel.ok()) {
      return fail(LinkDown::from(LinkFailure::kAuthentication, channel.error()));
    }
    channel_ = std::move(channel).value();
  }
  open_stream();
}

void AgentLink::open_stream() {
  agent::v1::OpenJob job;
  job.set_job_id(request_.job_id);
  job.set_host(request_.host);
  job.set_reattach(request_.reattach);
  *job.mutable_job() = job_description(context_->options());
  const Result<NodeUpload*> upload = context_->node_upload();
  if (!upload.ok()) {
    return fail(LinkDown::from(LinkFailure::kBootstrap, upload.error()));
  }
  job.set_bundle((*upload)->name());
  if (way_ == Way::kKept)
    job.set_target(agent_target_text({host_.name, place_.address, place_.port}));
  AgentStream::Handlers handlers;
  handlers.opened = [this](const agent::v1::Opened& opened) { on_opened(opened); };
  handlers.data = [this](std::string bytes) { on_data(std::move(bytes)); };
  handlers.drained = [this] { handlers_.drained(); };
  handlers.ended = [this](const AgentStatus& status) { on_ended(status); };
  place_.timed_out = false;
  is_patient_ = false;
  stream_ = std::make_unique<AgentStream>(context_->loop(), channel_, job, std::move(handlers));
  watch_answer();
}

void AgentLink::watch_answer() {
  const bool has_others = way_ == Way::kDirect && next_ < addresses_.size();
  timer_.expires_after(has_others ? std::min(answer_limit_, kAnswerOfMany) : answer_limit_);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) no_answer();
  });
}

// An agent whose handshake is done may take its time: it starts a supervisor on a loaded host.
void AgentLink::no_answer() {
  // Time and answer may have been due together: then this is about a question that is answered.
  const bool is_late = timer_.expiry() > std::chrono::steady_clock::now();
  if (is_late || place_.opened || !stream_) return;
  const bool asks_elsewhere = way_ == Way::kKept;
  if (!is_patient_ && channel_->is_connected() && !asks_elsewhere) {
    is_patient_ = true;
    timer_.expires_after(kAgentAnswer);
    timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
      if (!error && *alive) no_answer();
    });
    return;
  }
  place_.timed_out = true;
  on_ended(AgentStatus{static_cast<int>(Code::kDeadlineExceeded), "no answer", {}});
}

void AgentLink::on_opened(const agent::v1::Opened& opened) {
  if (place_.opened) return;
  timer_.cancel();
  place_.opened = true;
  place_.connected = true;
  place_among_handshakes_.reset();
  const std::string warning =
      host_expiry_warning(host_.name, opened.certificate_expires_at(), std::time(nullptr));
  if (!warning.empty() && !place_.redial) context_->note("agent expiry", "warning: " + warning);
  LinkUp up;
  up.carrier = way_ == Way::kKept ? Carrier::kKeptAgent : Carrier::kAgent;
  up.peer_address = place_.address;
  if (!place_.address.empty()) up.local_address = own_address_towards(place_.address);
  handlers_.up(up);
}

void AgentLink::on_data(std::string bytes) {
  if (!place_.opened) {
    return fail(LinkDown{LinkFailure::kBootstrap,
                         describe(place()) + " sends data before it has opened the job",
                         "is it an agent of a version that fits?"});
  }
  if (greeting_.is_past()) return handlers_.bytes(bytes);
  const std::shared_ptr<bool> alive = alive_;
  for (const GreetingEvent& event : greeting_.feed(bytes)) {
    if (event.kind == GreetingEvent::Kind::kFail) return fail(relay_failure(event.text));
    handlers_.bytes(event.text);
    if (!*alive) return;
  }
}

void AgentLink::write(std::string bytes) {
  if (stream_) stream_->write(std::move(bytes));
}

AgentPlace AgentLink::place() const {
  AgentPlace here = place_;
  if (way_ != Way::kDirect) here.address.clear();
  here.connected = place_.connected || channel_->is_connected();
  if (way_ == Way::kDirect) {
    here.refusal = channel_->refusal();
    here.believed = channel_->believes();
  }
  return here;
}

void AgentLink::on_ended(const AgentStatus& status) {
  timer_.cancel();
  const LinkDown down = agent_failure(place(), channel_->explain(status));
  leave_stream();
  if (place_.opened) return fail(down);
  const bool lacks_bundle =
      status.code == static_cast<int>(Code::kFailedPrecondition) && !status.need.empty();
  if (lacks_bundle && way_ != Way::kKept && !has_put_) return put(status.need);
  failures_.push_back(down);
  if (way_ == Way::kDirect && is_about_the_address(down.failure) && next_ < addresses_.size()) {
    return next_address();
  }
  // What another address says counts only where none came further.
  fail(is_about_the_address(down.failure) ? worst_of(failures_) : down);
}

void AgentLink::put(const std::string& architecture) {
  if (request_.reattach) {
    // Nothing of ours is on that host any more, so neither is a supervisor of this build.
    return fail(LinkDown{LinkFailure::kNoSuchJob, "ivy-node has been removed from the host", ""});
  }
  const Result<NodeUpload*> upload = context_->node_upload();
  const Result<NodeBundle> bundle =
      upload.ok() ? (*upload)->bundle(architecture) : Result<NodeBundle>(upload.error());
  if (!bundle.ok()) {
    return fail(LinkDown::from(LinkFailure::kBootstrap, bundle.error()));
  }
  has_put_ = true;
  const std::string all = mebibytes(bundle->tar->size());
  handlers_.progress("agent: sending ivy-node (" + all + ")");
  put_ = std::make_unique<AgentPut>(
      context_->loop(), channel_, (*upload)->name(), architecture, *bundle,
      AgentPut::Handlers{.moved =
                             [this, all](std::size_t percent) {
                               handlers_.progress("agent: sending ivy-node (" +
                                                  std::to_string(percent) + " % of " + all + ")");
                             },
                         .ended = [this](const AgentStatus& status) { on_put(status); }});
}

void AgentLink::on_put(const AgentStatus& status) {
  const std::shared_ptr<AgentPut> done = std::move(put_);
  asio::post(context_->loop(), [done] {});
  // The agent went away meanwhile: that says nothing about room.
  if (status.code == static_cast<int>(Code::kUnavailable)) {
    return fail(agent_failure(place(), status));
  }
  if (status.code == static_cast<int>(Code::kAborted) && ++crowded_puts_ <= kMostCrowdedPuts)
    return open_again();
  if (status.code != 0) {
    return fail(
        LinkDown{LinkFailure::kBootstrap,
                 "ivy-node cannot be put there: " + describe(place()) + ": " + status.message,
                 "give " + host_.name + " a cache directory with room: ~/.cache/ivyrun"});
  }
  open_stream();
}

void AgentLink::open_again() {
  has_put_ = false;
  handlers_.progress("agent: waiting, it receives ivy-node from others");
  timer_.expires_after(kCrowdedPause);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) open_stream();
  });
}

// A stream must not be destroyed inside one of its own handlers.
void AgentLink::leave_stream() {
  if (!stream_) return;
  stream_->close();
  const std::shared_ptr<AgentStream> old = std::move(stream_);
  asio::post(context_->loop(), [old] {});
}

void AgentLink::fail(LinkDown down) {
  if (!*alive_) return;
  const auto say = handlers_.down;
  close();
  say(down);
}

void AgentLink::close() {
  *alive_ = false;
  timer_.cancel();
  if (lookup_) lookup_->cancel();
  leave_stream();
  put_.reset();
  if (way_ == Way::kDirect && channel_) channel_->give_up();
  place_among_handshakes_.reset();
}

void AgentLink::post(std::function<void()> action) {
  asio::post(context_->loop(), [alive = alive_, action = std::move(action)] {
    if (*alive) action();
  });
}

}  // namespace ivy
