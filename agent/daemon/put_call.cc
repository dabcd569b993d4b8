#include "agent/daemon/put_call.h"

#include <boost/asio/post.hpp>

#include "agent/daemon/open_stream.h"

namespace ivy {

PutCall::PutCall(boost::asio::thread_pool& thread, const BundleCache& cache,
                 std::shared_ptr<std::atomic<int>> under_way, agent::v1::PutReply* reply)
    : thread_(thread), cache_(cache), under_way_(std::move(under_way)), reply_(reply) {
  if (++*under_way_ > kMaxAtOnce)
    Finish(grpc_status({Code::kAborted,
                        "more than " + std::to_string(kMaxAtOnce) + " bundles are coming in",
                        "try again"}));
  else
    StartRead(&request_);
}

PutCall::~PutCall() { --*under_way_; }

void PutCall::OnReadDone(bool ok) {
  boost::asio::post(thread_, [this, ok] { ok ? take() : put(); });
}

void PutCall::OnDone() { delete this; }

void PutCall::take() {
  const Result<void> taken = take_message();
  if (!taken.ok()) return Finish(grpc_status(taken.error()));
  StartRead(&request_);
}

Result<void> PutCall::take_message() {
  if (arrival_) return arrival_->take(request_.data());
  const agent::v1::PutBundle& bundle = request_.bundle();
  if (!request_.has_bundle())
    return Error{Code::kInvalidArgument, "the first message names no bundle"};
  arrival_ = IVY_TRY(cache_.accept({.bundle = bundle.bundle(),
                                    .architecture = bundle.architecture(),
                                    .sha256 = bundle.sha256(),
                                    .bytes = bundle.bytes()}));
  return {};
}

void PutCall::put() {
  if (!arrival_) return Finish(grpc_status({Code::kInvalidArgument, "no bundle was named"}));
  const Result<std::string> directory = arrival_->put();
  arrival_.reset();
  if (!directory.ok()) return Finish(grpc_status(directory.error()));
  reply_->set_directory(*directory);
  Finish(grpc::Status::OK);
}

}  // namespace ivy
