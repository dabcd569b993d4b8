// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs/open_stream.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ivy {

std::shared_ptr<OpenStream> OpenStream::make(boost::asio::io_context& loop,
                                             grpc::CallbackServerContext& context) {
  std::shared_ptr<OpenStream> stream(new OpenStream(loop, context));
  stream->self_ = stream;
  return stream;
}

void OpenStream::read() { StartRead(&request_); }

void OpenStream::write() {
  is_writing_ = true;
  StartWrite(&reply_);
}

void OpenStream::finish(grpc::Status status) {
  if (std::exchange(is_finished_, true)) return;
  handler_.reset();
  if (is_writing_)
    waiting_finish_ = std::move(status);
  else
    Finish(std::move(status));
}

void OpenStream::abort(grpc::Status status) {
  if (is_finished_ && !waiting_finish_) return;
  // A write to a peer that does not read would delay the end.
  if (is_writing_) context_.TryCancel();
  finish(std::move(status));
}

void OpenStream::add_trailer(const std::string& name, const std::string& value) {
  // gRPC may have taken the context back since.
  if (!is_finished_) context_.AddTrailingMetadata(name, value);
}

void OpenStream::OnReadDone(bool ok) {
  boost::asio::post(loop_, [self = shared_from_this(), ok] {
    // A copy: the handler may give the stream to another one, or finish it.
    const std::shared_ptr<StreamHandler> handler = self->handler_;
    if (handler) handler->on_read(ok);
  });
}

void OpenStream::OnWriteDone(bool ok) {
  boost::asio::post(loop_, [self = shared_from_this(), ok] {
    self->is_writing_ = false;
    if (self->waiting_finish_) {
      self->Finish(*std::exchange(self->waiting_finish_, std::nullopt));
      return;
    }
    const std::shared_ptr<StreamHandler> handler = self->handler_;
    if (handler) handler->on_written(ok);
  });
}

void OpenStream::OnCancel() {
  boost::asio::post(loop_, [self = shared_from_this()] {
    self->is_cancelled_ = true;
    const std::shared_ptr<StreamHandler> handler = self->handler_;
    if (handler) handler->on_cancelled();
  });
}

void OpenStream::OnDone() {
  boost::asio::post(loop_, [self = shared_from_this()] {
    self->handler_.reset();
    self->self_.reset();
  });
}

grpc::Status grpc_status(const Error& error) {
  std::string text = error.message;
  if (!error.fix.empty()) text += "; " + error.fix;
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), text);
}

}  // namespace ivy
