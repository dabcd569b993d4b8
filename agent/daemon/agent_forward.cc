#include "agent/daemon/agent_forward.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ivy {

std::shared_ptr<AgentForward> AgentForward::begin(boost::asio::io_context& loop,
                                                  std::shared_ptr<ForwardChannel> channel,
                                                  std::shared_ptr<OpenStream> stream) {
  const std::shared_ptr<AgentForward> forward(
      new AgentForward(loop, std::move(channel), std::move(stream)));
  forward->self_ = forward;
  forward->start();
  return forward;
}

void AgentForward::give_up() {
  stream_->abort(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the agent is ending"));
  cancel_far();
}

AgentForward::AgentForward(boost::asio::io_context& loop, std::shared_ptr<ForwardChannel> channel,
                           std::shared_ptr<OpenStream> stream)
    : loop_(loop),
      channel_(std::move(channel)),
      stream_(std::move(stream)),
      stub_(agent::v1::Agent::NewStub(channel_->grpc())) {}

void AgentForward::start() {
  up_ = std::move(stream_->request());
  up_.mutable_open()->clear_target();
  up_.mutable_open()->set_forwarded(true);
  stream_->request().Clear();
  stub_->async()->Open(&context_, this);
  // The hold allows operations from the loop until the far end's reads have ended.
  AddHold();
  is_writing_far_ = true;
  StartWrite(&up_);
  read_far();
  StartCall();
  stream_->hand_to(shared_from_this());
  if (stream_->is_cancelled()) on_cancelled();
}

void AgentForward::on_read(bool ok) {
  if (is_far_over_ || are_requests_over_) return;
  if (!ok) return end_requests();
  up_ = std::move(stream_->request());
  stream_->request().Clear();
  is_writing_far_ = true;
  StartWrite(&up_);
}

void AgentForward::on_written(bool ok) {
  stream_->reply().Clear();
  if (ok && !is_far_over_) read_far();
}

// The launcher has gone while this agent lives: the far end gets an orderly end of the requests,
// since a broken stream would mean that this agent has gone.
void AgentForward::on_cancelled() {
  if (is_far_over_) return;
  if (!are_requests_over_) end_requests();
  if (!is_reading_far_) read_far();
}

void AgentForward::end_requests() {
  are_requests_over_ = true;
  if (is_writing_far_) {
    ends_requests_when_written_ = true;
  } else {
    StartWritesDone();
  }
}

void AgentForward::cancel_far() {
  context_.TryCancel();
  // Only a read shows that the far call is over.
  if (!is_reading_far_ && !is_far_over_) read_far();
}

void AgentForward::read_far() {
  is_reading_far_ = true;
  StartRead(&down_);
}

void AgentForward::OnReadDone(bool ok) {
  boost::asio::post(loop_, [self = shared_from_this(), ok] { self->far_read(ok); });
}

void AgentForward::OnWriteDone(bool ok) {
  boost::asio::post(loop_, [self = shared_from_this(), ok] { self->far_written(ok); });
}

void AgentForward::OnDone(const grpc::Status& status) {
  boost::asio::post(loop_, [self = shared_from_this(), status] { self->far_done(status); });
}

void AgentForward::far_read(bool ok) {
  is_reading_far_ = false;
  if (!ok) {
    is_far_over_ = true;
    RemoveHold();
    return;
  }
  // Further replies are dropped, but only a read shows that the far call is over.
  if (stream_->is_over()) return read_far();
  stream_->reply() = std::move(down_);
  down_.Clear();
  stream_->write();
}

void AgentForward::far_written(bool ok) {
  is_writing_far_ = false;
  up_.Clear();
  if (ok && !is_far_over_ && ends_requests_when_written_) return StartWritesDone();
  // A far end that takes no more gives the reason in its status.
  if (ok && !is_far_over_ && !stream_->is_over()) stream_->read();
}

void AgentForward::far_done(const grpc::Status& status) {
  for (const auto& [name, value] : context_.GetServerTrailingMetadata())
    stream_->add_trailer(std::string(name.data(), name.size()),
                         std::string(value.data(), value.size()));
  const std::optional<Error> refusal = channel_->refusal();
  const bool was_refused = status.error_code() == grpc::StatusCode::UNAVAILABLE && refusal;
  stream_->finish(was_refused ? grpc_status(*refusal) : status);
  // Released here, on the loop: a channel must not be released on one of gRPC's own threads.
  stub_.reset();
  channel_->give_up_unless_connected();
  channel_.reset();
  self_.reset();
}

}  // namespace ivy
