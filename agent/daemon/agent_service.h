// SPDX-License-Identifier: Apache-2.0
// The calls of agent.proto. Each starts on a thread of gRPC, where its caller is authorized
// (net/authorization.h), and continues on the loop, where all state is (jobs/agent_core.h).
//
// Thread: construction, stop and destruction on the loop's; gRPC calls from its own. Lifetime:
// it must outlive the gRPC server; loop and `reports` must outlive it. The loop must run until the
// server's Shutdown has returned, because calls finish on it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "agent/daemon/jobs/agent_core.h"
#include "proto/contract/status.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {

class AgentService final : public agent::v1::Agent::CallbackService {
 public:
  using OpenReactor = grpc::ServerBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply>;
  using PutReactor = grpc::ServerReadReactor<agent::v1::PutRequest>;

  // Fails as AgentCore::make() does.
  static Result<std::unique_ptr<AgentService>> make(boost::asio::io_context& loop,
                                                    AgentServiceOptions options,
                                                    AgentReports& reports);
  ~AgentService() override;

  // Closes every transport, so that supervisors wait for the next agent. Call before the server's
  // Shutdown, whose calls then end by themselves.
  void stop();

  // The answers of the Facts and List calls, for the agent itself. Thread: the loop's.
  agent::v1::FactsReply facts() const;
  agent::v1::ListReply jobs() const;

 private:
  explicit AgentService(std::shared_ptr<AgentCore> core);

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

  std::shared_ptr<AgentCore> core_;
};

}  // namespace ivy
