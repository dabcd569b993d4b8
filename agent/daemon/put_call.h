// A Put call: receives a bundle message by message on the bundle cache's own thread, because a home
// on a network may keep a write waiting for seconds. Thread: reactions from gRPC's threads; the
// rest on that thread. Lifetime: deletes itself when gRPC is done with it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <memory>

#include "agent/daemon/bundle_cache.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

class PutCall final : public grpc::ServerReadReactor<agent::v1::PutRequest> {
 public:
  // Each may take the largest bundle's room on disk.
  static constexpr int kMaxAtOnce = 16;

  // under_way: the number of calls in progress, shared by all calls. Everything here outlives the
  // call.
  PutCall(boost::asio::thread_pool& thread, const BundleCache& cache,
          std::shared_ptr<std::atomic<int>> under_way, agent::v1::PutReply* reply);
  ~PutCall() override;

 private:
  void OnReadDone(bool ok) override;
  void OnDone() override;
  void take();
  Result<void> take_message();
  void put();

  boost::asio::thread_pool& thread_;
  const BundleCache& cache_;
  const std::shared_ptr<std::atomic<int>> under_way_;
  agent::v1::PutReply* const reply_;
  agent::v1::PutRequest request_;
  std::unique_ptr<BundleCache::Arrival> arrival_;
};

}  // namespace ivy
