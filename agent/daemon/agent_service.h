// SPDX-License-Identifier: Apache-2.0
// The calls of agent.proto. Reactions of gRPC's threads only post to the loop; all state lives
// there.
//
// Thread: construction, stop and destruction on the loop's; gRPC calls from its own. Lifetime:
// outlives the gRPC server, is outlived by the loop. The loop must run until the server's Shutdown
// has returned, because calls finish on it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/daemon/net/authorization.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_config.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {

struct AgentServiceOptions {
  std::string state_directory;   // 0700: records of jobs, tombstones.
  std::string bundle_directory;  // SSH's too: ${XDG_CACHE_HOME:-$HOME/.cache}/ivyrun.
  std::string jobs_cgroup;       // Supervisors start here; empty: in the agent's own.
  std::string containment;       // The answer to the Facts call.
  std::string version;
  // The agent's own, from which the jobs' environment is derived.
  Environment environment;
  // Expiry of this agent's certificate, for Opened and Facts; 0: none.
  std::function<std::int64_t()> certificate_expires_at;
  // Sends a status text to the service manager: "3 jobs".
  std::function<void(const std::string&)> status;
  // Logs one audit line per job, and warnings. Empty: agent_log. Called on the loop.
  std::function<void(const std::string&)> audit;
  std::function<void(const std::string&)> warn;
  // Identifies the peer of a call. Empty: peer_of() of agent_peer.h.
  std::function<Result<AgentPeer>(const grpc::CallbackServerContext&)> peer;
  // Other places for bundles, used when bundle_directory is not suitable. Nothing: as with SSH,
  // /tmp/ivyrun-cache-UID and /dev/shm/ivyrun-cache-UID.
  std::optional<std::vector<std::string>> other_bundle_directories;
};

class AgentService final : public agent::v1::Agent::CallbackService {
 public:
  using OpenReactor = grpc::ServerBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply>;
  using PutReactor = grpc::ServerReadReactor<agent::v1::PutRequest>;

  // Reads what an earlier agent has left: jobs that still run are served again, those that ended
  // meanwhile get their audit line now. Unavailable when another agent uses the state directory.
  static Result<std::unique_ptr<AgentService>> make(boost::asio::io_context& loop,
                                                    AgentServiceOptions options);
  ~AgentService() override;

  // Hangs up every transport, so that supervisors wait for the next agent. Call before the server's
  // Shutdown, whose calls then end by themselves.
  void stop();

 private:
  class Core;
  explicit AgentService(std::shared_ptr<Core> core);

  OpenReactor* Open(grpc::CallbackServerContext* context) override;
  PutReactor* Put(grpc::CallbackServerContext* context, agent::v1::PutReply* reply) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const agent::v1::ListRequest* request,
                                 agent::v1::ListReply* reply) override;
  grpc::ServerUnaryReactor* Facts(grpc::CallbackServerContext* context,
                                  const agent::v1::FactsRequest* request,
                                  agent::v1::FactsReply* reply) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const agent::v1::StopRequest* request,
                                 agent::v1::StopReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const agent::v1::DrainRequest* request,
                                  agent::v1::DrainReply* reply) override;

  std::shared_ptr<Core> core_;
};

}  // namespace ivy
