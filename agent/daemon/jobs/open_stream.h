// SPDX-License-Identifier: Apache-2.0
// The stream of one Open call. gRPC's callbacks are posted to the loop, one after the other, and
// every operation is started on the loop. At most one read and one write are under way.
//
// Thread: the callbacks of gRPC on its threads; everything else on the loop's. Lifetime: keeps
// itself alive until gRPC is done with it; finish() releases the handler.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

#include "proto/contract/status.h"
#include "proto/wire/agent.pb.h"

namespace ivy {

// The owner of a stream: OpenCall, then JobTransport. Called on the loop.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // Called when read() has finished. `ok` is true if it has filled request(), and false if the
  // requests have ended or the stream is broken.
  virtual void on_read(bool ok) = 0;
  virtual void on_written(bool ok) = 0;
  // Called when the connection, the launcher or the server's shutdown has broken the stream.
  virtual void on_cancelled() = 0;
};

class OpenStream final
    : public grpc::ServerBidiReactor<agent::v1::OpenRequest, agent::v1::OpenReply>,
      public std::enable_shared_from_this<OpenStream> {
 public:
  // The loop must outlive the stream. The context does, because gRPC owns it until OnDone.
  static std::shared_ptr<OpenStream> make(boost::asio::io_context& loop,
                                          grpc::CallbackServerContext& context);

  // Gives the stream to another handler, which also gets the results of operations under way.
  void hand_to(std::shared_ptr<StreamHandler> handler) { handler_ = std::move(handler); }

  void read();
  agent::v1::OpenRequest& request() { return request_; }
  // Fill it, then write(). Do not touch it until on_written().
  agent::v1::OpenReply& reply() { return reply_; }
  void write();
  bool is_cancelled() const { return is_cancelled_; }
  // Returns true if the stream is broken or finished, so that no operation may be started.
  bool is_over() const { return is_cancelled_ || is_finished_; }
  // Finishes after the write that is under way. Start no operation afterwards.
  void finish(grpc::Status status);
  // Finishes immediately: cancels a write that is under way. Start no operation afterwards.
  void abort(grpc::Status status);
  // Adds metadata to the end of the call. Has no effect after finish().
  void add_trailer(const std::string& name, const std::string& value);

 private:
  OpenStream(boost::asio::io_context& loop, grpc::CallbackServerContext& context)
      : loop_(loop), context_(context) {}
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  boost::asio::io_context& loop_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<OpenStream> self_;  // gRPC calls back until OnDone.
  std::shared_ptr<StreamHandler> handler_;
  agent::v1::OpenRequest request_;
  agent::v1::OpenReply reply_;
  bool is_writing_ = false;
  bool is_cancelled_ = false;
  bool is_finished_ = false;
  std::optional<grpc::Status> waiting_finish_;
};

// Converts an error: the text becomes "message; fix", and the code keeps its number.
grpc::Status grpc_status(const Error& error);

}  // namespace ivy
