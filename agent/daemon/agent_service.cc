// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/agent_service.h"

#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <ctime>
#include <set>
#include <utility>

#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/jobs/job_registry.h"
#include "agent/daemon/jobs/job_transport.h"
#include "agent/daemon/jobs/open_call.h"
#include "agent/daemon/jobs/open_stream.h"
#include "agent/daemon/jobs/warden_start.h"
#include "agent/daemon/net/agent_log.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using OpenReactor = AgentService::OpenReactor;
using PutReactor = AgentService::PutReactor;

constexpr std::uint32_t kProtocol = 1;
// Clients accept messages of 4 MiB. Beyond this, jobs are listed without their descriptions.
constexpr std::size_t kMaxListBytes = 3u << 20;

std::string user_name() {
  const passwd* const entry = getpwuid(geteuid());
  return entry == nullptr ? std::to_string(geteuid()) : std::string(entry->pw_name);
}

std::vector<std::string> bundle_places(const AgentServiceOptions& options) {
  if (!options.other_bundle_directories) return BundleCache::places_after(options.bundle_directory);
  std::vector<std::string> places = *options.other_bundle_directories;
  places.insert(places.begin(), options.bundle_directory);
  return places;
}

AgentServiceOptions with_defaults(AgentServiceOptions options) {
  if (!options.audit) options.audit = [](const std::string& line) { agent_log::notice(line); };
  if (!options.warn) options.warn = [](const std::string& line) { agent_log::warning(line); };
  if (!options.peer) options.peer = peer_of;
  if (!options.status) options.status = [](const std::string&) {};
  if (!options.certificate_expires_at) options.certificate_expires_at = [] { return 0; };
  return options;
}

}  // namespace

// The state of the service. Calls and transports keep it alive beyond the service, which closes it
// at its end.
class AgentService::Core final : public OpenContext, public std::enable_shared_from_this<Core> {
 public:
  Core(boost::asio::io_context& loop, AgentServiceOptions options);

  Result<void> open_registry();
  void stop();
  void close();
  // Called from any of gRPC's threads.
  Result<AgentPeer> peer(const grpc::CallbackServerContext& context) const {
    return options_.peer(context);
  }
  boost::asio::thread_pool& bundle_thread() { return bundle_thread_; }
  const std::shared_ptr<std::atomic<int>>& puts_under_way() { return puts_under_way_; }

  boost::asio::io_context& loop() override { return loop_; }
  BlockingPool& files() override { return *files_; }
  JobRegistry& registry() override { return *registry_; }
  const BundleCache& bundles() const override { return bundles_; }
  const std::string& architecture() const override { return architecture_; }
  bool is_draining() const override { return registry_->is_draining(); }
  bool is_stopping() const override { return stopping_; }
  const std::string& jobs_cgroup() const override { return options_.jobs_cgroup; }
  Environment jobs_environment() const override { return jobs_environment_; }
  void carry(const JobKey& key, int socket, std::shared_ptr<OpenStream> stream,
             bool reattached) override;
  void status_changed() override;

  void list(agent::v1::ListReply& reply) const;
  void facts(agent::v1::FactsReply& reply) const;
  void stop(const agent::v1::StopRequest& request, const std::string& who,
            agent::v1::StopReply& reply);
  void drain(const agent::v1::DrainRequest& request, agent::v1::DrainReply& reply);

 private:
  boost::asio::io_context& loop_;
  const AgentServiceOptions options_;
  const BundleCache bundles_;
  const Environment jobs_environment_;
  std::string architecture_;
  std::string host_name_;
  const std::string user_ = user_name();
  const std::int64_t started_at_ = static_cast<std::int64_t>(std::time(nullptr));
  std::unique_ptr<JobRegistry> registry_;
  std::set<std::shared_ptr<JobTransport>> transports_;
  bool stopping_ = false;
  std::unique_ptr<BlockingPool> files_;
  // The thread of the bundle cache, for PutCall.
  boost::asio::thread_pool bundle_thread_{1};
  const std::shared_ptr<std::atomic<int>> puts_under_way_ = std::make_shared<std::atomic<int>>(0);
};

AgentService::Core::Core(boost::asio::io_context& loop, AgentServiceOptions options)
    : loop_(loop),
      options_(with_defaults(std::move(options))),
      bundles_(bundle_places(options_)),
      jobs_environment_(environment_for_jobs(options_.environment)),
      files_(std::make_unique<BlockingPool>(
          [&loop](std::function<void()> done) { boost::asio::post(loop, std::move(done)); })) {
  utsname machine{};
  uname(&machine);
  architecture_ = machine.machine;
  host_name_ = machine.nodename;
}

Result<void> AgentService::Core::open_registry() {
  registry_ = IVY_TRY(JobRegistry::make(loop_, options_.state_directory,
                                        {.audit = options_.audit,
                                         .warn = options_.warn,
                                         .ended = [this](const JobKey&) { status_changed(); }}));
  if (registry_->is_draining())
    options_.warn(
        "still draining, as before this agent was started: no new jobs are accepted until "
        "`ivy-agent drain --undo`");
  registry_->look_at_all();
  status_changed();
  return {};
}

void AgentService::Core::stop() {
  stopping_ = true;
  const std::set<std::shared_ptr<JobTransport>> transports = std::exchange(transports_, {});
  for (const std::shared_ptr<JobTransport>& transport : transports) transport->hang_up();
}

void AgentService::Core::close() {
  stop();
  bundle_thread_.join();
  files_.reset();  // No call goes on that waits for a file system.
  registry_.reset();
}

void AgentService::Core::carry(const JobKey& key, int socket, std::shared_ptr<OpenStream> stream,
                               bool reattached) {
  agent::v1::Opened opened;
  opened.set_version(options_.version);
  opened.set_reattached(reattached);
  opened.set_certificate_expires_at(options_.certificate_expires_at());
  const auto transport = std::make_shared<JobTransport>(
      loop_, key, socket, std::move(stream),
      [this](JobTransport& over) { transports_.erase(over.shared_from_this()); });
  transports_.insert(transport);
  transport->begin(opened);
}

void AgentService::Core::status_changed() {
  const std::size_t jobs = registry_ ? registry_->size() : 0;
  options_.status((is_draining() ? "draining, " : "") + counted(jobs, "job"));
}

void AgentService::Core::list(agent::v1::ListReply& reply) const {
  std::set<JobKey> attached;
  for (const std::shared_ptr<JobTransport>& transport : transports_) {
    if (transport->has_launcher()) attached.insert(transport->key());
  }
  std::size_t bytes = 0;
  for (const JobKey& key : registry_->jobs()) {
    const JobRecord& record = *registry_->find(key);
    agent::v1::JobEntry* const entry = reply.add_jobs();
    entry->set_job_id(key.job_id);
    entry->set_host(key.host);
    entry->set_opened_at(record.opened_at);
    entry->set_certificate(record.certificate);
    entry->set_attached(attached.contains(key));
    bytes += record.description.size();
    if (bytes > kMaxListBytes || !entry->mutable_job()->ParseFromString(record.description))
      entry->clear_job();
  }
}

void AgentService::Core::facts(agent::v1::FactsReply& reply) const {
  reply.set_version(options_.version);
  reply.set_protocol(kProtocol);
  reply.set_host_name(host_name_);
  reply.set_user(user_);
  reply.set_architecture(architecture_);
  reply.set_certificate_expires_at(options_.certificate_expires_at());
  reply.set_draining(is_draining());
  reply.set_jobs(static_cast<std::uint32_t>(registry_->size()));
  reply.set_containment(options_.containment);
  reply.set_started_at(started_at_);
}

void AgentService::Core::stop(const agent::v1::StopRequest& request, const std::string& who,
                              agent::v1::StopReply& reply) {
  std::optional<std::chrono::milliseconds> grace;
  if (request.has_grace_ms()) grace = std::chrono::milliseconds(request.grace_ms());
  std::uint32_t asked = 0;
  for (const JobKey& key : registry_->jobs()) {
    if (key.job_id != request.job_id()) continue;
    if (registry_->stop(key, grace)) reply.set_with_grace(reply.with_grace() + 1);
    ++asked;
  }
  reply.set_supervisors(asked);
  if (asked > 0)
    agent_log::notice("stop: job " + request.job_id() + " is being stopped, requested by " + who);
}

void AgentService::Core::drain(const agent::v1::DrainRequest& request,
                               agent::v1::DrainReply& reply) {
  const auto kept = [this, undo = request.undo()](const Result<void>& written) {
    if (!written.ok())
      options_.warn(std::string("drain") + (undo ? " --undo" : "") +
                    " has effect only until this agent exits: " + written.error().message);
  };
  registry_->set_draining(!request.undo(), kept);
  if (request.stop_jobs() && is_draining()) {
    for (const JobKey& key : registry_->jobs()) registry_->stop(key);
  }
  reply.set_jobs(static_cast<std::uint32_t>(registry_->size()));
  agent_log::notice(std::string("drain: ") +
                    (!is_draining() ? "new jobs are accepted again"
                     : request.stop_jobs()
                         ? "new jobs are rejected, and running jobs are being stopped"
                         : "new jobs are rejected") +
                    "; " + std::to_string(registry_->size()) + " here");
  status_changed();
}

namespace {

// A Put call: receives a bundle message by message on the bundle cache's own thread, because a home
// on a network may keep a write waiting for seconds. It deletes itself when gRPC is done with it.
class PutCall final : public PutReactor {
 public:
  // Each may take the largest bundle's room on disk.
  static constexpr int kMaxAtOnce = 16;

  // under_way: the number of calls in progress, shared by all calls. Everything here outlives the
  // call.
  PutCall(boost::asio::thread_pool& thread, const BundleCache& cache,
          std::shared_ptr<std::atomic<int>> under_way, agent::v1::PutReply* reply)
      : thread_(thread), cache_(cache), under_way_(std::move(under_way)), reply_(reply) {
    if (++*under_way_ > kMaxAtOnce)
      Finish(grpc_status({Code::kAborted,
                          "more than " + std::to_string(kMaxAtOnce) + " bundles are being received",
                          "try again"}));
    else
      StartRead(&request_);
  }
  ~PutCall() override { --*under_way_; }

 private:
  void OnReadDone(bool ok) override {
    boost::asio::post(thread_, [this, ok] { ok ? take() : put(); });
  }

  void OnDone() override { delete this; }

  void take() {
    const Result<void> taken = take_message();
    if (!taken.ok()) return Finish(grpc_status(taken.error()));
    StartRead(&request_);
  }

  Result<void> take_message() {
    if (arrival_) return arrival_->take(request_.data());
    const agent::v1::PutBundle& bundle = request_.bundle();
    if (!request_.has_bundle())
      return Error{Code::kInvalidArgument, "the first message does not identify a bundle"};
    arrival_ = IVY_TRY(cache_.accept({.bundle = bundle.bundle(),
                                      .architecture = bundle.architecture(),
                                      .sha256 = bundle.sha256(),
                                      .bytes = bundle.bytes()}));
    return {};
  }

  void put() {
    if (!arrival_) return Finish(grpc_status({Code::kInvalidArgument, "no bundle was specified"}));
    const Result<std::string> directory = arrival_->put();
    arrival_.reset();
    if (!directory.ok()) return Finish(grpc_status(directory.error()));
    reply_->set_directory(*directory);
    Finish(grpc::Status::OK);
  }

  boost::asio::thread_pool& thread_;
  const BundleCache& cache_;
  const std::shared_ptr<std::atomic<int>> under_way_;
  agent::v1::PutReply* const reply_;
  agent::v1::PutRequest request_;
  std::unique_ptr<BundleCache::Arrival> arrival_;
};

// A stream that was refused before its first message was read.
template <class Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const Error& error) { this->Finish(grpc_status(error)); }
  void OnDone() override { delete this; }
};

}  // namespace

Result<std::unique_ptr<AgentService>> AgentService::make(boost::asio::io_context& loop,
                                                         AgentServiceOptions options) {
  auto core = std::make_shared<Core>(loop, std::move(options));
  IVY_CHECK(core->open_registry());
  return std::unique_ptr<AgentService>(new AgentService(std::move(core)));
}

AgentService::AgentService(std::shared_ptr<Core> core) : core_(std::move(core)) {}

AgentService::~AgentService() { core_->close(); }

void AgentService::stop() { core_->stop(); }

AgentService::OpenReactor* AgentService::Open(grpc::CallbackServerContext* context) {
  Result<AgentPeer> peer = core_->peer(*context);
  if (!peer.ok()) return new Refused<OpenReactor>(peer.error());
  const std::shared_ptr<OpenStream> stream = OpenStream::make(core_->loop(), *context);
  boost::asio::post(core_->loop(), [core = core_, stream, peer = std::move(peer).value()] {
    std::make_shared<OpenCall>(core, stream, peer)->begin();
  });
  return stream.get();
}

AgentService::PutReactor* AgentService::Put(grpc::CallbackServerContext* context,
                                            agent::v1::PutReply* reply) {
  const Result<AgentPeer> peer = core_->peer(*context);
  if (!peer.ok()) return new Refused<PutReactor>(peer.error());
  return new PutCall(core_->bundle_thread(), core_->bundles(), core_->puts_under_way(), reply);
}

namespace {

// Answers a unary call on the loop, or refuses a peer that has no right to it.
template <class Answer>
grpc::ServerUnaryReactor* answer_on_loop(boost::asio::io_context& loop,
                                         grpc::CallbackServerContext* context,
                                         const Result<void>& allowed, Answer answer) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!allowed.ok()) {
    reactor->Finish(grpc_status(allowed.error()));
    return reactor;
  }
  boost::asio::post(loop, [reactor, answer = std::move(answer)] {
    answer();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

Result<void> known(const Result<AgentPeer>& peer) {
  if (!peer.ok()) return peer.error();
  return {};
}

Result<void> known_on_this_host(const Result<AgentPeer>& peer) {
  IVY_CHECK(known(peer));
  if (!peer->local)
    return Error{Code::kPermissionDenied, "drain is allowed only on the agent's Unix socket",
                 "run ivy-agent drain on that host"};
  return {};
}

}  // namespace

grpc::ServerUnaryReactor* AgentService::List(grpc::CallbackServerContext* context,
                                             const agent::v1::ListRequest*,
                                             agent::v1::ListReply* reply) {
  return answer_on_loop(core_->loop(), context, known(core_->peer(*context)),
                        [core = core_, reply] { core->list(*reply); });
}

grpc::ServerUnaryReactor* AgentService::Facts(grpc::CallbackServerContext* context,
                                              const agent::v1::FactsRequest*,
                                              agent::v1::FactsReply* reply) {
  return answer_on_loop(core_->loop(), context, known(core_->peer(*context)),
                        [core = core_, reply] { core->facts(*reply); });
}

grpc::ServerUnaryReactor* AgentService::Stop(grpc::CallbackServerContext* context,
                                             const agent::v1::StopRequest* request,
                                             agent::v1::StopReply* reply) {
  const Result<AgentPeer> peer = core_->peer(*context);
  const std::string who = peer.ok() ? peer->certificate() : "";
  return answer_on_loop(core_->loop(), context, known(peer),
                        [core = core_, request, who, reply] { core->stop(*request, who, *reply); });
}

grpc::ServerUnaryReactor* AgentService::Drain(grpc::CallbackServerContext* context,
                                              const agent::v1::DrainRequest* request,
                                              agent::v1::DrainReply* reply) {
  return answer_on_loop(core_->loop(), context, known_on_this_host(core_->peer(*context)),
                        [core = core_, request, reply] { core->drain(*request, *reply); });
}

}  // namespace ivy
