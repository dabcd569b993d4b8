// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/agent_service.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "agent/daemon/jobs/open_call.h"
#include "agent/daemon/jobs/open_stream.h"
#include "agent/daemon/net/authorization.h"

namespace ivy {
namespace {

using OpenReactor = AgentService::OpenReactor;
using PutReactor = AgentService::PutReactor;

// A Put call: receives a bundle message by message on the bundle cache's own thread, because a home
// on a network may keep a write waiting for seconds. It deletes itself when gRPC is done with it.
class PutCall final : public PutReactor {
 public:
  // Each call may reserve disk space for the largest bundle.
  static constexpr int kMaxAtOnce = 16;

  // thread and cache outlive the call's use of them.
  PutCall(boost::asio::thread_pool& thread, const BundleCache& cache, agent::v1::PutReply* reply)
      : thread_(thread), cache_(cache), reply_(reply) {
    if (++under_way_ > kMaxAtOnce)
      Finish(grpc_status({Code::kAborted,
                          "more than " + std::to_string(kMaxAtOnce) + " bundles are being received",
                          "try again"}));
    else
      StartRead(&request_);
  }
  ~PutCall() override { --under_way_; }

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

  static inline std::atomic<int> under_way_ = 0;  // Put calls in progress.

  boost::asio::thread_pool& thread_;
  const BundleCache& cache_;
  agent::v1::PutReply* const reply_;
  agent::v1::PutRequest request_;
  std::unique_ptr<BundleCache::Arrival> arrival_;
};

// A stream that was rejected before its first message was read.
template <class Reactor>
class Rejected final : public Reactor {
 public:
  explicit Rejected(const Error& error) { this->Finish(grpc_status(error)); }
  void OnDone() override { delete this; }
};

}  // namespace

Result<std::unique_ptr<AgentService>> AgentService::make(boost::asio::io_context& loop,
                                                         AgentServiceOptions options,
                                                         AgentReports& reports) {
  std::shared_ptr<AgentCore> core = IVY_TRY(AgentCore::make(loop, std::move(options), reports));
  return std::unique_ptr<AgentService>(new AgentService(std::move(core)));
}

AgentService::AgentService(std::shared_ptr<AgentCore> core) : core_(std::move(core)) {}

AgentService::~AgentService() { core_->close(); }

void AgentService::stop() { core_->stop(); }

agent::v1::FactsReply AgentService::facts() const {
  agent::v1::FactsReply reply;
  core_->facts(reply);
  return reply;
}

agent::v1::ListReply AgentService::jobs() const {
  agent::v1::ListReply reply;
  core_->list(reply);
  return reply;
}

AgentService::OpenReactor* AgentService::Open(grpc::CallbackServerContext* context) {
  Result<Caller> caller = authorize_caller(*context);
  if (!caller.ok()) return new Rejected<OpenReactor>(caller.error());
  const std::shared_ptr<OpenStream> stream = OpenStream::make(core_->loop(), *context);
  boost::asio::post(core_->loop(), [core = core_, stream, caller = std::move(caller).value()] {
    std::make_shared<OpenCall>(core, stream, caller)->begin();
  });
  return stream.get();
}

AgentService::PutReactor* AgentService::Put(grpc::CallbackServerContext* context,
                                            agent::v1::PutReply* reply) {
  const Result<Caller> caller = authorize_caller(*context);
  if (!caller.ok()) return new Rejected<PutReactor>(caller.error());
  return new PutCall(core_->bundle_thread(), core_->bundles(), reply);
}

namespace {

// Answers a unary call on the loop if its caller was authorized, else rejects it.
template <class Answer>
grpc::ServerUnaryReactor* answer_on_loop(boost::asio::io_context& loop,
                                         grpc::CallbackServerContext* context,
                                         const Result<Caller>& caller, Answer answer) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!caller.ok()) {
    reactor->Finish(grpc_status(caller.error()));
    return reactor;
  }
  boost::asio::post(loop, [reactor, answer = std::move(answer)] {
    answer();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

Result<Caller> authorize_local_caller(const grpc::CallbackServerContext& context) {
  Result<Caller> caller = authorize_caller(context);
  if (caller.ok() && !caller->local)
    return Error{Code::kPermissionDenied, "drain is allowed only on the agent's Unix socket",
                 "run ivy-agent drain on that host"};
  return caller;
}

}  // namespace

grpc::ServerUnaryReactor* AgentService::List(grpc::CallbackServerContext* context,
                                             const agent::v1::ListRequest*,
                                             agent::v1::ListReply* reply) {
  return answer_on_loop(core_->loop(), context, authorize_caller(*context),
                        [core = core_, reply] { core->list(*reply); });
}

grpc::ServerUnaryReactor* AgentService::Facts(grpc::CallbackServerContext* context,
                                              const agent::v1::FactsRequest*,
                                              agent::v1::FactsReply* reply) {
  return answer_on_loop(core_->loop(), context, authorize_caller(*context),
                        [core = core_, reply] { core->facts(*reply); });
}

grpc::ServerUnaryReactor* AgentService::Stop(grpc::CallbackServerContext* context,
                                             const agent::v1::StopRequest* request,
                                             agent::v1::StopReply* reply) {
  const Result<Caller> caller = authorize_caller(*context);
  const std::string certificate = caller.ok() ? caller->certificate() : "";
  return answer_on_loop(
      core_->loop(), context, caller,
      [core = core_, request, certificate, reply] { core->stop(*request, certificate, *reply); });
}

grpc::ServerUnaryReactor* AgentService::Drain(grpc::CallbackServerContext* context,
                                              const agent::v1::DrainRequest* request,
                                              agent::v1::DrainReply* reply) {
  return answer_on_loop(core_->loop(), context, authorize_local_caller(*context),
                        [core = core_, request, reply] { core->drain(*request, *reply); });
}

}  // namespace ivy
