// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_client.h"

#include <grpcpp/client_context.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "launcher/links/address_lookup.h"
#include "launcher/links/agent/agent_channel.h"
#include "launcher/links/agent/agent_failure.h"
#include "launcher/links/this_host.h"
#include "launcher/links/transport_context.h"
#include "launcher/streams/loop_gate.h"
#include "proto/wire/agent.grpc.pb.h"

namespace ivy {
namespace asio = boost::asio;
namespace v1 = agent::v1;
using std::chrono::milliseconds;

namespace {

// The memory of one unary call, which exists until the call is done. gRPC's threads only post to
// the loop.
template <class Reply>
struct AgentCall {
  std::shared_ptr<AgentChannel> channel;
  std::unique_ptr<v1::Agent::Stub> stub;
  grpc::ClientContext context;
  Reply reply;
};

template <class Reply>
using Start = std::function<void(AgentCall<Reply>&, std::function<void(grpc::Status)>)>;

// The request to one host: tries address after address until one answers, all within the deadline.
// Pending operations keep the object alive.
template <class Reply>
class Question : public std::enable_shared_from_this<Question<Reply>> {
 public:
  using Answered = std::function<void(const Host&, const Result<Reply>&)>;

  Question(asio::io_context& loop, std::shared_ptr<TransportContext> context, Host host,
           Start<Reply> start, Answered answered)
      : loop_(loop),
        context_(std::move(context)),
        host_(std::move(host)),
        start_(std::move(start)),
        answered_(std::move(answered)),
        gate_(std::make_shared<LoopGate>(loop)),
        timer_(loop) {}

  void send(milliseconds deadline) {
    endpoint_.host = host_.name;
    timer_.expires_after(deadline);
    timer_.async_wait([self = this->shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->on_timeout();
    });
    gate_->post([self = this->shared_from_this()] {
      if (const Result<void> ready = self->prepare(); !ready.ok()) self->finish(ready.error());
    });
  }

 private:
  Result<void> prepare() {
    if (is_this_host(host_)) {
      endpoint_.socket = IVY_TRY(context_->agent_socket());
      call(AgentChannel::over_unix(endpoint_.socket));
      return {};
    }
    own_identity_ = IVY_TRY(context_->agent_user());
    endpoint_.self = "user/" + own_identity_->self.name + " serial " + own_identity_->self.serial;
    endpoint_.port = host_.port == 0 ? own_identity_->port : host_.port;
    if (is_numeric_address(host_.name)) {
      addresses_ = {host_.name};
      next_address();
      return {};
    }
    look_up_addresses(loop_, context_->resolvers(), host_.name,
                      [self = this->shared_from_this()](const Result<Addresses>& addresses) {
                        if (!self->answered_) return;
                        if (!addresses.ok()) return self->finish(addresses.error());
                        self->addresses_ = *addresses;
                        self->next_address();
                      });
    return {};
  }

  void next_address() {
    endpoint_.address = addresses_[next_++];
    if (call_) call_->channel->give_up();
    Result<std::shared_ptr<AgentChannel>> channel = AgentChannel::over_tls(
        *context_, *own_identity_, host_.name, endpoint_.address, endpoint_.port);
    if (!channel.ok()) return finish(channel.error());
    call(std::move(channel).value());
  }

  void call(std::shared_ptr<AgentChannel> channel) {
    call_ = std::make_shared<AgentCall<Reply>>();
    call_->channel = std::move(channel);
    call_->stub = v1::Agent::NewStub(call_->channel->grpc());
    start_(*call_, [self = std::weak_ptr(this->shared_from_this()), call = call_,
                    gate = gate_](const grpc::Status& status) {
      const AgentStatus ended{
          static_cast<int>(status.error_code()), status.error_message(), {}, {}};
      gate->post([self, call, ended] {
        if (const auto alive = self.lock()) alive->ended(ended);
      });
    });
  }

  AgentEndpoint endpoint() const {
    AgentEndpoint here = endpoint_;
    if (!call_) return here;
    here.connected = call_->channel->is_connected();
    here.rejection = call_->channel->rejection();
    here.is_verified = call_->channel->is_verified();
    return here;
  }

  void ended(const AgentStatus& status) {
    if (status.code == 0) return finish(std::move(call_->reply));
    const AgentStatus why = call_->channel->explain(status);
    const bool other = is_about_the_address(agent_failure(endpoint(), why).failure);
    if (other && next_ < addresses_.size()) return next_address();
    finish(agent_error(endpoint(), why));
  }

  void on_timeout() {
    // The answer and the deadline were due in the same turn of the loop, and the answer was first.
    if (!answered_) return;
    endpoint_.timed_out = true;
    if (endpoint_.address.empty() && endpoint_.socket.empty()) {
      return finish(Error{Code::kDeadlineExceeded,
                          "the name server did not respond for " + host_.name + " in time",
                          "getent hosts " + host_.name});
    }
    finish(agent_error(endpoint(), {}));
  }

  void finish(const Result<Reply>& answer) {
    const std::shared_ptr<Question> self = this->shared_from_this();
    gate_->close();
    timer_.cancel();
    if (call_) {
      call_->context.TryCancel();
      call_->channel->give_up();
    }
    std::exchange(answered_, {})(host_, answer);
  }

  asio::io_context& loop_;
  const std::shared_ptr<TransportContext> context_;
  const Host host_;
  const Start<Reply> start_;
  Answered answered_;
  const std::shared_ptr<LoopGate> gate_;
  asio::steady_timer timer_;
  const AgentIdentity* own_identity_ = nullptr;
  Addresses addresses_;
  std::size_t next_ = 0;
  AgentEndpoint endpoint_;
  std::shared_ptr<AgentCall<Reply>> call_;
};

JobEntry entry_of(const v1::JobEntry& job) {
  JobEntry entry;
  entry.job_id = job.job_id();
  entry.opened_at_unix_s = job.opened_at();
  entry.user = job.job().user();
  entry.launcher_host = job.job().launcher_host();
  entry.program = job.job().program();
  entry.name = job.job().name();
  entry.attached = job.attached();
  return entry;
}

}  // namespace

void list_jobs(asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
               const std::vector<Host>& hosts, milliseconds deadline,
               std::function<void(const Host&, const Result<std::vector<JobEntry>>&)> answered) {
  static const v1::ListRequest kRequest;
  for (const Host& host : hosts) {
    const auto question = std::make_shared<Question<v1::ListReply>>(
        loop, context, host,
        [](AgentCall<v1::ListReply>& call, std::function<void(grpc::Status)> done) {
          call.stub->async()->List(&call.context, &kRequest, &call.reply, std::move(done));
        },
        [answered](const Host& queried, const Result<v1::ListReply>& reply) {
          if (!reply.ok()) return answered(queried, reply.error());
          std::vector<JobEntry> jobs;
          for (const v1::JobEntry& job : reply->jobs()) jobs.push_back(entry_of(job));
          answered(queried, jobs);
        });
    question->send(deadline);
  }
}

void stop_job(asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
              const std::vector<Host>& hosts, const StopOrder& order, milliseconds deadline,
              std::function<void(const Host&, const Result<StopAnswer>&)> answered) {
  const auto request = std::make_shared<v1::StopRequest>();
  request->set_job_id(order.job_id);
  if (order.grace) request->set_grace_ms(static_cast<std::uint32_t>(order.grace->count()));
  for (const Host& host : hosts) {
    const auto question = std::make_shared<Question<v1::StopReply>>(
        loop, context, host,
        [request](AgentCall<v1::StopReply>& call, std::function<void(grpc::Status)> done) {
          call.stub->async()->Stop(&call.context, request.get(), &call.reply, std::move(done));
        },
        [request, answered](const Host& queried, const Result<v1::StopReply>& reply) {
          if (!reply.ok()) return answered(queried, reply.error());
          answered(queried, StopAnswer{reply->supervisors(), reply->with_grace()});
        });
    question->send(deadline);
  }
}

}  // namespace ivy
