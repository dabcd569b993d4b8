// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_stream.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <mutex>
#include <utility>

#include "proto/os/clock.h"
#include "proto/wire/agent.grpc.pb.h"
#include "proto/wire/message_size.h"

namespace ivy {
namespace v1 = agent::v1;

namespace {

// A half-closed call that the agent does not finish is cancelled after this time. The agent would
// forward the supervisor's last messages for 5 s, but nothing reads them here.
constexpr std::chrono::seconds kCloseTimeout{2};

AgentStatus status_of(const grpc::Status& status, const grpc::ClientContext& context) {
  AgentStatus result{static_cast<int>(status.error_code()), status.error_message(), {}, {}};
  const auto& trailer = context.GetServerTrailingMetadata();
  if (const auto need = trailer.find("ivy-need"); need != trailer.end()) {
    result.need.assign(need->second.data(), need->second.size());
  }
  if (const auto wait = trailer.find("ivy-wait"); wait != trailer.end()) {
    result.wait.assign(wait->second.data(), wait->second.size());
  }
  return result;
}

}  // namespace

// The gRPC reactor, which keeps itself alive until the call is done. At most one read and one write
// are in progress. The hold keeps gRPC from completing the call while the loop may still start one
// of them.
class AgentStream::Call : public grpc::ClientBidiReactor<v1::OpenRequest, v1::OpenReply>,
                          public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<AgentChannel> channel, std::shared_ptr<LoopGate> gate,
       AgentStreamEvents& events)
      : channel_(std::move(channel)),
        stub_(v1::Agent::NewStub(channel_->grpc())),
        gate_(std::move(gate)),
        events_(events) {}

  void start(const v1::OpenJob& job) {
    self_ = shared_from_this();
    *request_.mutable_open() = job;
    stub_->async()->Open(&context_, this);
    AddHold();
    StartWrite(&request_);
    StartRead(&reply_);
    StartCall();
  }

  void write(std::string bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !held_ || broken_) return;
      pending_.append(bytes);
      if (writing_) return;
      next_chunk();
    }
    StartWrite(&request_);
  }

  // If a message is being written, it serves as a heartbeat, and its next chunks follow without the
  // loop.
  void write_alive(std::string_view frame) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !held_ || broken_ || writing_) return;
      pending_ = frame;
      next_chunk();
    }
    StartWrite(&request_);
  }

  void close() {
    bool read = false;
    bool finish = false;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !held_) return;
      closed_ = true;
      read = !std::exchange(reading_, true) && !read_over_;
      finish = !writing_;
      if (finish) held_ = false;
    }
    // Further messages are read and dropped, so that the agent can finish the call.
    if (read) StartRead(&reply_);
    if (finish) half_close();
  }

  void cancel() { context_.TryCancel(); }

  // Registers a function that is called once when the call is done, on any thread. Returns false if
  // it is done already.
  bool when_done(std::function<void()> done) {
    const std::lock_guard lock(mutex_);
    if (!self_) return false;
    done_ = std::move(done);
    return true;
  }

 private:
  void OnReadDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      reading_ = ok && closed_;
      read_over_ = !ok;
      if (!closed_) {
        gate_->post([self = shared_from_this(), ok] { self->read_on(ok); });
        return;
      }
    }
    if (ok) StartRead(&reply_);
  }

  // Runs on the loop. The next read starts only after the bytes were handled, so a slow loop slows
  // the agent down.
  void read_on(bool ok) {
    if (!ok) return release();
    const std::shared_ptr<Call> self = shared_from_this();
    tell_reply();
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || !held_) return;
      reading_ = true;
    }
    StartRead(&reply_);
  }

  void tell_reply() {
    switch (reply_.kind_case()) {
      case v1::OpenReply::kOpened:
        return events_.stream_opened(reply_.opened());
      case v1::OpenReply::kData:
        return events_.stream_bytes(reply_.data());
      case v1::OpenReply::KIND_NOT_SET:
        return;  // A message of a later version, which this version has not requested.
    }
  }

  void OnWriteDone(bool ok) override {
    bool more = false;
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok) {
        broken_ = true;
        pending_.clear();
      }
      const bool was_opening = std::exchange(opening_, false);
      message_size_.written(request_.data().size(), monotonic_ns());
      more = !pending_.empty();
      if (more) {
        next_chunk();
      } else if (!closed_) {
        if (ok && !was_opening)
          gate_->post([self = shared_from_this()] { self->events_.stream_drained(); });
        return;
      } else if (!std::exchange(held_, false)) {
        return;
      }
    }
    if (more) {
      StartWrite(&request_);
    } else {
      half_close();
    }
  }

  void OnDone(const grpc::Status& status) override {
    const AgentStatus ended = status_of(status, context_);
    gate_->post([self = shared_from_this(), ended] { self->events_.stream_ended(ended); });
    std::shared_ptr<Call> self;
    std::function<void()> done;
    {
      const std::lock_guard lock(mutex_);
      done = std::exchange(done_, {});
      self = std::move(self_);
    }
    if (done) done();
  }

  // Puts the next bytes into the request. Call with mutex_ held.
  void next_chunk() {
    const std::size_t size = std::min(pending_.size() - sent_, message_size_.bytes());
    request_.set_data(pending_.substr(sent_, size));
    sent_ += size;
    if (sent_ == pending_.size()) {
      pending_.clear();
      sent_ = 0;
    }
    writing_ = true;
  }

  // Ends the call's writes and removes the hold.
  void half_close() {
    StartWritesDone();
    RemoveHold();
  }

  // Removes the hold, if it is there.
  void release() {
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(held_, false)) return;
    }
    RemoveHold();
  }

  const std::shared_ptr<AgentChannel> channel_;
  const std::unique_ptr<v1::Agent::Stub> stub_;
  const std::shared_ptr<LoopGate> gate_;
  AgentStreamEvents& events_;  // Called on the loop, while the gate is open.
  grpc::ClientContext context_;
  v1::OpenRequest request_;
  v1::OpenReply reply_;

  std::mutex mutex_;            // Guards all members that follow.
  std::shared_ptr<Call> self_;  // Keeps the call alive until it is done.
  std::function<void()> done_;  // From when_done().
  session::MessageSize message_size_;
  std::string pending_;     // Bytes to be sent.
  std::size_t sent_ = 0;    // Bytes of pending_ that were sent.
  bool opening_ = true;     // The first message is being written.
  bool writing_ = true;     // A message is being written.
  bool reading_ = true;     // A read is in progress, or no read may be started.
  bool read_over_ = false;  // No further message will arrive.
  bool broken_ = false;     // A write has failed.
  bool closed_ = false;
  bool held_ = true;  // The hold is there.
};

AgentStream::AgentStream(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
                         const v1::OpenJob& request, AgentStreamEvents& events)
    : loop_(loop),
      gate_(std::make_shared<LoopGate>(loop)),
      call_(std::make_shared<Call>(std::move(channel), gate_, events)) {
  call_->start(request);
}

AgentStream::~AgentStream() { close(); }

void AgentStream::write(std::string bytes) { call_->write(std::move(bytes)); }

void AgentStream::write_alive(std::string_view frame) { call_->write_alive(frame); }

void AgentStream::close() {
  if (!gate_->is_open()) return;
  gate_->close();
  call_->close();
  // The wait for the timer owns both the timer and `over`. If the loop ends first, they are
  // destroyed with it, and the destruction of `over` cancels the call as well.
  using Timer = boost::asio::steady_timer;
  const auto timer = std::make_shared<Timer>(loop_, kCloseTimeout);
  const auto last = std::make_shared<LoopGate>(loop_);
  const bool waits = call_->when_done([last, weak = std::weak_ptr<Timer>(timer)] {
    last->post([weak] {
      if (const auto alive = weak.lock()) alive->cancel();
    });
  });
  if (!waits) return last->close();
  std::shared_ptr<void> over(nullptr, [last, call = call_](void*) {
    last->close();
    call->cancel();
  });
  timer->async_wait([timer, over](const boost::system::error_code&) {});
}

}  // namespace ivy
