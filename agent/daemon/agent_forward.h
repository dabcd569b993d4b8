// Carries an Open stream on to another agent: message by message, without interpreting them, one in
// each direction at a time. The far agent's errors and trailers are passed on unchanged.
//
// Thread: reactions from gRPC's threads only post to the loop; the rest the loop's. Lifetime: keeps
// itself alive until gRPC is done with the far call.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <boost/asio/io_context.hpp>
#include <memory>

#include "agent/daemon/forward_channel.h"
#include "agent/daemon/open_stream.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {

class AgentForward final
    : public StreamHandler,
      public grpc::ClientBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply>,
      public std::enable_shared_from_this<AgentForward> {
 public:
  // stream: its request() holds the OpenJob, whose target is removed.
  static std::shared_ptr<AgentForward> begin(boost::asio::io_context& loop,
                                             std::shared_ptr<ForwardChannel> channel,
                                             std::shared_ptr<OpenStream> stream);
  // Ends the stream because this agent ends: both sides are told at once.
  void give_up();

 private:
  AgentForward(boost::asio::io_context& loop, std::shared_ptr<ForwardChannel> channel,
               std::shared_ptr<OpenStream> stream);
  void start();

  void on_read(bool ok) override;
  void on_written(bool ok) override;
  void on_cancelled() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void far_read(bool ok);
  void far_written(bool ok);
  void far_done(const grpc::Status& status);
  void read_far();
  void end_requests();
  void cancel_far();

  boost::asio::io_context& loop_;
  std::shared_ptr<ForwardChannel> channel_;
  std::shared_ptr<OpenStream> stream_;
  std::shared_ptr<AgentForward> self_;  // gRPC calls back until OnDone.
  grpc::ClientContext context_;
  std::unique_ptr<agent::v1::Agent::Stub> stub_;
  agent::v1::OpenRequest up_;
  agent::v1::OpenReply down_;
  bool is_reading_far_ = false;
  bool is_writing_far_ = false;
  bool is_far_over_ = false;  // It sends no more: no operation may be begun on it either.
  bool are_requests_over_ = false;
  bool ends_requests_when_written_ = false;
};

}  // namespace ivy
