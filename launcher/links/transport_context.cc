// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/transport_context.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "launcher/links/this_host.h"
#include "proto/contract/log.h"
#include "proto/os/clock.h"

extern char** environ;

namespace ivy {
namespace {

// Notes of one kind that are printed without -v.
constexpr int kNotesOfAKind = 3;

// Enough for logins to many hosts: each takes some milliseconds of processor time per step.
constexpr int kBlockingThreads = 16;
// Limit of queued tasks: several hundred hosts may log in again at the same time.
constexpr std::size_t kBlockingTasks = 4096;
// Shorter delays are normal on network file systems.
constexpr std::chrono::seconds kReportedWait{4};

std::string key_of(const Host& host) {
  return host.user + "@" + host.name + ":" + std::to_string(host.port);
}

}  // namespace

Awaitable<Slots::Ticket> Slots::acquire(Sequence& sequence) {
  const auto queue = [this](const Arrival<Ticket>& arrive) {
    waiting_.push_back(arrive);
    grant_soon();
  };
  co_return co_await sequence.wait<Ticket>(queue);
}

void Slots::grant_soon() {
  boost::asio::post(loop_, [weak = std::weak_ptr<Slots*>(self_)] {
    if (const auto self = weak.lock()) (*self)->grant_next();
  });
}

void Slots::grant_next() {
  if (free_ == 0 || waiting_.empty()) return;
  const Arrival<Ticket> granted = std::move(waiting_.front());
  waiting_.pop_front();
  --free_;
  // The deleter of the ticket gives the slot back.
  granted(Ticket(static_cast<void*>(this), [weak = std::weak_ptr<Slots*>(self_)](void*) {
    const auto self = weak.lock();
    if (!self) return;
    ++(*self)->free_;
    (*self)->grant_soon();
  }));
}

TransportContext::TransportContext(boost::asio::io_context& loop, const Options& options,
                                   NodeProgram node, MakeAgentLink make_agent_link)
    : loop_(loop),
      options_(options),
      node_(std::move(node)),
      make_agent_link_(std::move(make_agent_link)),
      handshakes_(loop, std::max(1, options.fanout)),
      terminal_(loop, 1),
      // Only pauses depend on it. A random_device would first query the processor.
      random_(static_cast<unsigned>(monotonic_ns())) {}

Awaitable<Result<std::shared_ptr<NodeUpload>>> TransportContext::node_upload(Sequence& sequence) {
  const std::string directory = node_.path.substr(0, node_.path.rfind('/')) + "/../lib/ivyrun";
  if (!std::exchange(reads_upload_, true)) {
    const auto load = [directory] { return NodeUpload::load(directory); };
    // --start-timeout bounds it.
    blocking().run(directory, BlockingPool::kNoDeadline, load,
                   [this](Result<std::shared_ptr<NodeUpload>> upload) {
                     upload_ = std::move(upload);
                     for (const auto& arrive : std::exchange(waiting_for_upload_, {})) arrive(true);
                   });
  }
  const std::function<bool()> is_over = [this] { return upload_.has_value(); };
  const std::function<void(const Arrival<bool>&)> listen = [this](const Arrival<bool>& arrive) {
    waiting_for_upload_.push_back(arrive);
  };
  co_await wait_and_report(sequence, *this, "ivyrun", directory, is_over, listen);
  co_return *upload_;
}

Awaitable<Result<NodeBundle>> TransportContext::bundle(Sequence& sequence,
                                                       std::string architecture) {
  const Result<std::shared_ptr<NodeUpload>> upload = co_await node_upload(sequence);
  if (!upload.ok()) co_return upload.error();
  const auto read = [upload = *upload, architecture] { return upload->bundle(architecture); };
  co_return co_await call_blocking(sequence, *this, "ivyrun", (*upload)->directory(),
                                   BlockingPool::kNoDeadline, read);
}

const Result<std::optional<AgentIdentity>>& TransportContext::agent_identity() {
  if (!agent_identity_) take_identity(load_agent_identity(environment_of(environ), wall_s()));
  return *agent_identity_;
}

void TransportContext::take_identity(Result<std::optional<AgentIdentity>> identity) {
  agent_identity_ = std::move(identity);
  const bool has_one = agent_identity_->ok() && agent_identity_->value().has_value();
  const std::string warning =
      has_one ? own_expiry_warning(*agent_identity_->value(), wall_s()) : "";
  if (!warning.empty()) note("own expiry", "warning: " + warning);
}

void TransportContext::prepare_agents(std::function<void()> done) {
  struct Own {
    Result<std::optional<AgentIdentity>> identity;
    Result<std::string> socket;
  };
  const auto read = [environment = environment_of(environ)]() -> Result<Own> {
    own_account();  // Kept for the loop.
    return Own{load_agent_identity(environment, wall_s()), find_agent_socket(environment)};
  };
  // --start-timeout bounds it.
  blocking().run("agent.toml", BlockingPool::kNoDeadline, read,
                 [this, done = std::move(done)](Result<Own> own) {
                   if (own.ok()) {
                     take_identity(std::move(own->identity));
                     agent_socket_ = std::move(own->socket);
                   }
                   done();
                 });
}

Result<const AgentIdentity*> TransportContext::agent_user() {
  const Result<std::optional<AgentIdentity>>& identity = agent_identity();
  if (!identity.ok()) return identity.error();
  if (*identity) return &**identity;
  return Error{Code::kNotFound, "no agent is configured: agent.toml does not exist",
               "make it on the host with the CA: ivy-agent cert --user NAME"};
}

const Result<std::string>& TransportContext::agent_socket() {
  if (!agent_socket_) agent_socket_ = find_agent_socket(environment_of(environ));
  return *agent_socket_;
}

std::optional<Transport> TransportContext::transport_of(const Host& host) const {
  const auto known = transports_.find(key_of(host));
  if (known == transports_.end()) return std::nullopt;
  return known->second;
}

void TransportContext::remember_transport(const Host& host, Transport kind) {
  transports_[key_of(host)] = kind;
}

void TransportContext::note(const std::string& kind, const RemoteText& text) {
  if (!noted_.insert(text.line()).second) return;
  const int printed = notes_[kind]++;
  if (events_ != nullptr && printed < kNotesOfAKind) return events_->transport_note(text);
  if (events_ != nullptr && printed == kNotesOfAKind)
    events_->transport_note("note: ...and the same on more hosts (-v lists them)");
  log::debug(text.line());
}

boost::asio::thread_pool& TransportContext::resolvers() {
  if (!resolvers_) resolvers_ = std::make_unique<boost::asio::thread_pool>(kResolverThreads);
  return *resolvers_;
}

BlockingPool& TransportContext::blocking() {
  if (!blocking_) {
    const auto post = [this](std::function<void()> function) {
      boost::asio::post(loop_, std::move(function));
    };
    BlockingPool::Limits limits;
    limits.threads = kBlockingThreads;
    limits.queued = kBlockingTasks;
    blocking_ = std::make_unique<BlockingPool>(post, limits);
  }
  return *blocking_;
}

double TransportContext::jitter() {
  return std::uniform_real_distribution<double>(0.5, 1.5)(random_);
}

Awaitable<void> wait_and_report(Sequence& sequence, TransportContext& context, std::string host,
                                std::string what, std::function<bool()> is_over,
                                std::function<void(const Arrival<bool>&)> listen) {
  std::chrono::seconds waited{0}, next = kReportedWait;
  while (!is_over()) {
    const std::optional<bool> arrived = co_await sequence.wait_at_most<bool>(next, listen);
    if (arrived) continue;
    waited += next;
    next = waited;
    context.note("waits", "note: " + host + " waits for " + what + ", " +
                              std::to_string(waited.count()) + " s");
  }
}

}  // namespace ivy
