// SPDX-License-Identifier: Apache-2.0
// An Open call from its first message until a transport has it: checks the request, decides
// (job_opening.h), starts or connects, or refuses with a reason. Whatever touches files of the user
// runs on the pool: the cache may lie in a home on a network. Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>

#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/jobs/job_registry.h"
#include "agent/daemon/jobs/open_stream.h"
#include "agent/daemon/jobs/warden_start.h"
#include "agent/daemon/net/authorization.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The parts of the service that opening needs. Outlives every call.
class OpenContext {
 public:
  virtual ~OpenContext() = default;
  virtual boost::asio::io_context& loop() = 0;
  virtual BlockingPool& files() = 0;
  virtual JobRegistry& registry() = 0;
  virtual const BundleCache& bundles() const = 0;
  virtual const std::string& architecture() const = 0;
  virtual bool is_draining() const = 0;
  virtual bool is_stopping() const = 0;
  // Empty: supervisors start in the agent's cgroup.
  virtual const std::string& jobs_cgroup() const = 0;
  virtual Environment jobs_environment() const = 0;
  // Gives the stream a transport over this socket.
  virtual void carry(const JobKey& key, int socket, std::shared_ptr<OpenStream> stream,
                     bool reattached) = 0;
  virtual void status_changed() = 0;
};

class OpenCall final : public StreamHandler, public std::enable_shared_from_this<OpenCall> {
 public:
  // A stream whose first message does not arrive is closed after this time.
  static constexpr std::chrono::seconds kFirstMessageWithin{10};
  // A supervisor that is being started listens after a few milliseconds; one that ends may still be
  // listed as living for a moment.
  static constexpr std::chrono::seconds kConnectWithin{5};
  // A call that waits for a file system longer than this is answered "ivy-wait": the launcher says
  // so and asks again. Less than launchers wait for an answer.
  static constexpr std::chrono::seconds kFilesWithin{6};
  // If this many threads are stuck in file systems, a call is answered "ivy-wait" immediately, so
  // that launchers that retry do not use up the threads.
  static constexpr int kMaxStuck = 8;

  // context: kept alive by the call.
  OpenCall(std::shared_ptr<OpenContext> context, std::shared_ptr<OpenStream> stream,
           AgentPeer peer);
  void begin();

 private:
  void on_read(bool ok) override;
  void on_written(bool) override {}
  void on_cancelled() override;

  Result<void> check() const;
  void try_open();
  void find_bundle();
  // bundle: the directory of this build; empty if it is not here.
  void decide(const std::string& bundle);
  void try_again();
  void start(const std::string& directory);
  void spawn(const std::string& directory);
  void on_started(Result<StartedWarden> warden);
  void expect_files(const std::string& name);
  void say_waiting(const std::string& name);
  void need_bundle();
  void refuse(const Error& error);
  JobKey key() const { return {job_.job_id(), job_.host()}; }

  const std::shared_ptr<OpenContext> context_;
  std::shared_ptr<OpenStream> stream_;  // Null once it was handed on or has ended.
  const AgentPeer peer_;
  agent::v1::OpenJob job_;
  Descriptor socket_;  // Of the job's supervisor; none if nothing listens.
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::milliseconds pause_{5};
};

}  // namespace ivy
