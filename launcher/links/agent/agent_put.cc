// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_put.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "proto/os/clock.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {
namespace v1 = agent::v1;

namespace {

constexpr std::size_t kMaxPutBytes = 64u << 10;
// A slower transfer (half of a line of 256 kbit/s) has stalled; the deadline of the call follows
// from it.
constexpr std::size_t kSlowestBytesPerSecond = 16u << 10;
constexpr std::chrono::seconds kMinTime{30};

}  // namespace

// The gRPC reactor: writes the chunks one after the other, then waits for the answer. Keeps itself
// alive until the call is done.
class AgentPut::Call : public grpc::ClientWriteReactor<v1::PutRequest>,
                       public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<AgentChannel> channel, NodeBundle bundle, std::shared_ptr<LoopGate> gate,
       const LinkReports& reports, Ended ended)
      : channel_(std::move(channel)),
        stub_(v1::Agent::NewStub(channel_->grpc())),
        bundle_(std::move(bundle)),
        rest_(bundle_.archive()),
        gate_(std::move(gate)),
        reports_(reports),
        ended_(std::move(ended)),
        progress_(0, rest_.size()) {}

  void start(const std::string& name, const std::string& architecture) {
    self_ = shared_from_this();
    v1::PutBundle& head = *request_.mutable_bundle();
    head.set_bundle(name);
    head.set_architecture(architecture);
    head.set_sha256(bundle_.archive_sha256);
    head.set_bytes(rest_.size());
    context_.set_deadline(system_now() + kMinTime +
                          std::chrono::seconds(rest_.size() / kSlowestBytesPerSecond));
    stub_->async()->Put(&context_, &reply_, this);
    StartWrite(&request_);
    StartCall();
  }

  void cancel() { context_.TryCancel(); }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    const std::size_t size = std::min(rest_.size(), kMaxPutBytes);
    if (size == 0) return StartWritesDone();
    request_.set_data(rest_.data(), size);
    report_moved();
    rest_.remove_prefix(size);
    StartWrite(&request_);
  }

  // Reports the bytes that were written before this chunk.
  void report_moved() {
    const auto moved = progress_.moved_to(bundle_.archive().size() - rest_.size());
    if (!moved) return;
    gate_->post([self = self_, moved] {
      self->reports_.progress(sending_step("agent: sending ivy-node", moved));
    });
  }

  void OnDone(const grpc::Status& status) override {
    const AgentStatus ended{static_cast<int>(status.error_code()), status.error_message(), {}, {}};
    const std::shared_ptr<Call> self = std::move(self_);
    gate_->post([self, ended] { self->ended_(ended); });
  }

  const std::shared_ptr<AgentChannel> channel_;
  const std::unique_ptr<v1::Agent::Stub> stub_;
  const NodeBundle bundle_;
  std::string_view rest_;
  const std::shared_ptr<LoopGate> gate_;
  const LinkReports& reports_;  // Used on the loop, while the gate is open, as is ended_.
  const Ended ended_;
  UploadProgress progress_;
  grpc::ClientContext context_;
  v1::PutRequest request_;
  v1::PutReply reply_;
  std::shared_ptr<Call> self_;
};

AgentPut::AgentPut(boost::asio::io_context& loop, std::shared_ptr<AgentChannel> channel,
                   const std::string& name, const std::string& architecture,
                   const NodeBundle& bundle, const LinkReports& reports, Ended ended)
    : gate_(std::make_shared<LoopGate>(loop)),
      call_(std::make_shared<Call>(std::move(channel), bundle, gate_, reports, std::move(ended))) {
  call_->start(name, architecture);
}

AgentPut::~AgentPut() {
  gate_->close();
  call_->cancel();
}

}  // namespace ivy
