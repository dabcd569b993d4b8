// SPDX-License-Identifier: Apache-2.0
// The state of a serving agent: its jobs, their transports, the bundle cache and the threads that
// wait for file systems. OpenCall works on it for Open; list(), facts(), stop() and drain() answer
// the other calls.
//
// Thread: the loop's, except where noted. Lifetime: calls keep it alive beyond the service, which
// closes it. Outlived by the loop, `credentials` and `reports`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/daemon/jobs/agent_reports.h"
#include "agent/daemon/jobs/bundle_cache.h"
#include "agent/daemon/jobs/job_registry.h"
#include "agent/daemon/jobs/job_transport.h"
#include "agent/daemon/jobs/open_stream.h"
#include "agent/daemon/net/agent_credentials.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

struct AgentServiceOptions {
  std::string state_directory;   // Holds the records of jobs and tombstones; its mode is 0700.
  std::string bundle_directory;  // ${XDG_CACHE_HOME:-$HOME/.cache}/ivyrun, shared with SSH.
  std::string jobs_cgroup;       // Where supervisors start; if empty, in the agent's cgroup.
  std::string containment;       // Reported by the Facts call.
  std::string version;
  // The agent's environment, from which the environment of jobs is derived.
  Environment environment;
  // The source of the expiry of this agent's certificate, which Opened and Facts report. Null if
  // the agent has no certificate.
  const AgentCredentials* credentials = nullptr;
  // Other directories for bundles, used when bundle_directory is not suitable. By default, as with
  // SSH, these are /tmp/ivyrun-cache-UID and /dev/shm/ivyrun-cache-UID.
  std::optional<std::vector<std::string>> other_bundle_directories;
};

class AgentCore final : public TransportOwner {
 public:
  // Reads the jobs that an earlier agent left: those that still run are served again, the others
  // get their audit line now. Returns Unavailable if another agent uses the state directory.
  static Result<std::shared_ptr<AgentCore>> make(boost::asio::io_context& loop,
                                                 AgentServiceOptions options,
                                                 AgentReports& reports);
  // Closes every transport, so that supervisors wait for the next agent.
  void stop();
  // Calls stop(), and abandons the tasks for which the pools still wait. No function may be called
  // afterwards.
  void close();

  boost::asio::io_context& loop() { return loop_; }
  BlockingPool& files() { return *files_; }
  JobRegistry& registry() { return *registry_; }
  const BundleCache& bundles() const { return bundles_; }
  const std::string& architecture() const { return architecture_; }
  bool is_draining() const { return registry_->is_draining(); }
  bool is_stopping() const { return stopping_; }
  // Returns an empty path if supervisors start in the agent's cgroup.
  const std::string& jobs_cgroup() const { return options_.jobs_cgroup; }
  const Environment& jobs_environment() const { return jobs_environment_; }

  // Gives the stream a transport over this socket of the job's supervisor.
  void carry(const JobKey& key, int socket, std::shared_ptr<OpenStream> stream, bool reattached);

  void list(agent::v1::ListReply& reply) const;
  void facts(agent::v1::FactsReply& reply) const;
  void stop(const agent::v1::StopRequest& request, const std::string& caller,
            agent::v1::StopReply& reply);
  void drain(const agent::v1::DrainRequest& request, agent::v1::DrainReply& reply);

  // Returns the thread that carries out Put calls. Any thread may call this.
  boost::asio::thread_pool& bundle_thread() { return bundle_thread_; }

 private:
  AgentCore(boost::asio::io_context& loop, AgentServiceOptions options);
  void transport_ended(JobTransport& transport) override;
  std::int64_t certificate_expires_at() const;

  boost::asio::io_context& loop_;
  const AgentServiceOptions options_;
  const BundleCache bundles_;
  const Environment jobs_environment_;
  std::string architecture_;
  std::string host_name_;
  const std::string user_;
  const std::int64_t started_at_;
  std::unique_ptr<JobRegistry> registry_;
  std::set<std::shared_ptr<JobTransport>> transports_;
  bool stopping_ = false;
  std::unique_ptr<BlockingPool> files_;
  // The bundle cache's thread: a home on a network may keep a write waiting for seconds.
  boost::asio::thread_pool bundle_thread_{1};
};

}  // namespace ivy
