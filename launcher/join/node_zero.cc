// SPDX-License-Identifier: Apache-2.0
// In the order of a job: listen(), gather(), node_dialled() for each connection, take() for each
// message and admit() for Join, check_gathered(), begin_job(), then the functions that the job
// calls: show(), begin_attempt(), end(). leave() and reattach() handle a broken connection and the
// next one.
#include "launcher/join/node_zero.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstdio>
#include <utility>

#include "launcher/join/join_wire.h"
#include "launcher/links/this_host.h"
#include "launcher/options/transport_kind.h"
#include "launcher/screen/console.h"
#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// How long the end of a job waits for nodes to read the last messages.
constexpr milliseconds kEndTimeout{3'000};
// How long the end of a job waits for nodes that have no connection to dial again.
constexpr milliseconds kReturnTimeout{500};
constexpr std::chrono::seconds kLinePause{30};
constexpr std::chrono::seconds kFirstLinePause{2};
// Maximum number of connections that have not sent Join.
constexpr std::size_t kMaxUnattached = 64;

JoiningNode own_node(const Options& options) {
  JoiningNode node;
  node.rank = 0;
  node.host = own_host_name();
  node.build = build_name();
  node.terms = options.join_terms;
  return node;
}

join::NodeZeroMessage notice_of(std::string_view text) {
  join::NodeZeroMessage message;
  message.mutable_notice()->set_text(std::string(text.substr(0, kMaxCtlBytes / 2)));
  return message;
}

join::NodeZeroMessage end_of(int exit_code) {
  join::NodeZeroMessage message;
  message.mutable_end()->set_exit_code(exit_code);
  return message;
}

// Returns --master-addr if it is a numeric address of this machine; else all addresses, because a
// name may lead here through another machine.
std::string address_to_listen_on(const Options& options) {
  const bool is_numeric = parse_address(options.join_address, 0).is_valid();
  return is_numeric && is_own_address(options.join_address) ? options.join_address : "::";
}

Diagnostic too_late(const std::string& node) {
  return {.id = "IVY-J004",
          .what = node + " joined too late: the job has started without it",
          .fix = "start every node once, within node 0's --start-timeout",
          .exit_code = kExitRejected};
}

std::string command_for_others(const Options& options, int nodes) {
  const std::string name = options.join_address.empty() ? own_host_name() : options.join_address;
  return "ivyrun --nnodes " + std::to_string(nodes) + " --node-rank R --master-addr " + name +
         (options.join_port == 29'500 ? ""
                                      : " --master-port " + std::to_string(options.join_port)) +
         " ...";
}

}  // namespace

// Passes the events of its connection on, with its place in the list.
struct NodeZero::Node final : JoinedNode, DialBackStreamEvents {
  explicit Node(NodeZero& node_zero) : zero(node_zero) {}
  void stream_bytes(std::string_view bytes) override { zero.take_bytes(self, bytes); }
  void stream_drained() override {}
  void stream_ended(const std::string&) override { zero.leave(self); }

  NodeZero& zero;
  NodeIterator self;
};

NodeZero::NodeZero(boost::asio::io_context& loop, const JobRequest& request)
    : loop_(loop),
      options_(request.options),
      job_id_(request.identity.job_id),
      key_(make_job_identity().token),
      node_list_(own_node(request.options), *request.options.num_nodes,
                 request.options.min_nodes.value_or(*request.options.num_nodes)),
      hosts_(std::make_shared<JoinedHosts>(loop)),
      start_timer_(loop),
      line_timer_(loop),
      end_timer_(loop) {}

NodeZero::~NodeZero() {
  if (listener_) listener_->close();
  for (const Node& node : nodes_) node.stream->stop();
}

Result<std::unique_ptr<NodeZero>> NodeZero::open(boost::asio::io_context& loop,
                                                 const JobRequest& request, const JoinKey& key) {
  std::unique_ptr<NodeZero> made(new NodeZero(loop, request));
  IVY_CHECK(made->listen(key));
  return made;
}

Result<void> NodeZero::listen(const JoinKey& key) {
  DialBackListenerSettings settings;
  settings.port_low = settings.port_high = options_.join_port;
  settings.addresses = {address_to_listen_on(options_)};
  settings.keys.hosts = {job_id_, key_};
  settings.keys.join = {kJoinIdentity, key.key};
  settings.awaited = "the other nodes";
  settings.fix =
      "another program uses this port: choose another with --master-port PORT, the same on every "
      "node";
  auto listener = DialBackListener::open(loop_, settings, *this);
  if (!listener.ok() && settings.addresses.front() == "::") {
    // This machine may not support IPv6.
    settings.addresses = {"0.0.0.0"};
    listener = DialBackListener::open(loop_, settings, *this);
  }
  listener_ = IVY_TRY(std::move(listener));
  hosts_->set_listening_text(listener_->listening_text());
  const bool is_remote_address = parse_address(options_.join_address, 0).is_valid() &&
                                 settings.addresses.front() != options_.join_address;
  if (is_remote_address && !options_.quiet)
    print("note: --master-addr " + options_.join_address +
          " is not an address of this host, where node 0 was started");
  return {};
}

void NodeZero::print(const std::string& line) const {
  if (job_ != nullptr) return job_->nodes_message(line);
  std::fputs(escape_control("ivyrun: " + line + "\n").c_str(), stderr);
}

void NodeZero::peer_rejected(const std::string& address, const std::string& why) {
  print("warning: dropped a connection from " + address + " to the port where nodes join: " + why +
        " (nodes need the same --join-secret-file and --rdzv-id)");
}

void NodeZero::gather(Gathered on_gathered) {
  on_gathered_ = std::move(on_gathered);
  gathers_until_ns_ = monotonic_ns() + std::chrono::nanoseconds(options_.start_timeout).count();
  start_timer_.expires_after(options_.start_timeout);
  start_timer_.async_wait([this](const error_code& error) {
    if (!error) check_gathered(/*timed_out=*/true);
  });
  line_timer_.expires_after(kFirstLinePause);
  schedule_waiting_line();
}

void NodeZero::schedule_waiting_line() {
  line_timer_.async_wait([this](const error_code& error) {
    if (error || !on_gathered_) return;
    if (!options_.quiet)
      print("node 0 is waiting for " + node_list_.missing_text() + " of " +
            std::to_string(node_list_.total_nodes()) + " on " + hosts_->listening_text());
    line_timer_.expires_after(kLinePause);
    schedule_waiting_line();
  });
}

void NodeZero::node_dialled(std::uint32_t rank, std::shared_ptr<DialBackStream> stream) {
  const auto unattached = static_cast<std::size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const Node& node) { return node.name.empty(); }));
  if (unattached >= kMaxUnattached) return stream->stop();
  const NodeIterator node = nodes_.emplace(nodes_.end(), *this);
  node->self = node;
  node->rank = static_cast<int>(rank);
  node->stream = std::move(stream);
  join::NodeZeroMessage welcome;
  welcome.mutable_welcome()->set_build(std::string(build_name()));
  if (on_gathered_)
    welcome.mutable_welcome()->set_begins_within_ms(static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, (gathers_until_ns_ - monotonic_ns()) / 1'000'000)));
  node->send(welcome);
  // At the end, because it delivers what has arrived already, which may remove the node.
  node->stream->start(*node);
}

void NodeZero::take_bytes(NodeIterator node, std::string_view bytes) {
  const bool continues = take_messages<join::NodeMessage>(
      node->decoder, bytes, [&](const join::NodeMessage& message) { return take(node, message); });
  if (!continues) leave(node);
}

bool NodeZero::take(NodeIterator node, const join::NodeMessage& message) {
  if (message.has_join() && node->name.empty()) {
    admit(node, message.join());
    return true;
  }
  if (node->name.empty()) return false;
  // A rejected node may be one of an earlier job, and repeats what it could not tell that job.
  if (node->host < 0) return true;
  if (message.has_interrupt()) {
    interrupt(*node, message.interrupt());
  } else if (message.has_consumed()) {
    const std::uint64_t bytes = node->take_consumed(message.consumed().total());
    if (job_ != nullptr) job_->output_consumed(node->host, bytes);
  } else if (message.has_acknowledged()) {
    node->drop_acknowledged(message.acknowledged().messages());
  }
  return true;
}

void NodeZero::admit(NodeIterator node, const join::Join& message) {
  JoiningNode joining = decode_node(message, node->stream->peer_address());
  node->rank = joining.rank;
  node->name = node_text(joining.rank, joining.host);
  node->process = joining.process;
  if (!on_gathered_ || !message.job_id().empty()) {
    if (reattach(node, message)) return;
    const Diagnostic late = too_late(node->name);
    print("warning: " + late.what + "; its connection was rejected");
    node->send(notice_of(render(late)));
    node->send(end_of(late.exit_code));
    node->rank = -1;
    node->is_done = true;
    return;
  }
  if (const std::optional<Diagnostic> rejection = node_list_.add(joining))
    return std::exchange(on_gathered_, nullptr)(*rejection);
  if (options_.verbose > 0) print(node->name + " has joined from " + joining.address);
  // The same ivyrun may dial again before the end of its last connection is noticed here.
  for (NodeIterator other = nodes_.begin(); other != nodes_.end();) {
    const NodeIterator current = other++;
    if (current != node && current->rank == node->rank && !current->name.empty()) forget(current);
  }
  check_gathered(/*timed_out=*/false);
}

// Attaches a new connection of an ivyrun that has joined already, and sends the messages that it
// has not acknowledged. The end of its last connection may not have been noticed yet. Returns false
// if the node is not part of the job.
bool NodeZero::reattach(NodeIterator node, const join::Join& message) {
  const auto old = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& one) {
    return one.host >= 0 && one.rank == node->rank && one.process == node->process;
  });
  if (old == nodes_.end() || (!message.job_id().empty() && message.job_id() != job_id_))
    return false;
  old->drop_acknowledged(message.received());
  old->move_to(*node);
  boost::asio::post(loop_, [kept = old->stream] {});
  nodes_.erase(old);
  hosts_->mark_connected(node->name);
  if (options_.verbose > 0) print(node->name + " is connected again");
  return true;
}

// Waits for the node to connect again: a connection may break while both ends are running. After
// `timeout` the node is gone.
void NodeZero::await_reconnection(NodeIterator node, milliseconds timeout) {
  node->stream->stop();
  node->absence = std::make_unique<boost::asio::steady_timer>(loop_, timeout);
  node->absence->async_wait([this, node](const error_code& error) {
    if (error) return;
    hosts_->mark_closed(node->name);
    forget(node);
    check_all_closed();
  });
}

void NodeZero::check_gathered(bool timed_out) {
  if (!on_gathered_) return;
  if (node_list_.is_complete() || (timed_out && node_list_.is_enough())) return begin_job();
  if (timed_out)
    std::exchange(on_gathered_,
                  nullptr)(nodes_missing(node_list_, hosts_->listening_text(),
                                         command_for_others(options_, node_list_.total_nodes())));
}

void NodeZero::reject(const Diagnostic& why, std::function<void()> on_sent) {
  on_gathered_ = nullptr;
  for (Node& node : nodes_) node.send(notice_of(render(why)));
  end(why.exit_code, std::move(on_sent));
}

void NodeZero::begin_job() {
  start_timer_.cancel();
  line_timer_.cancel();
  join::NodeZeroMessage message;
  join::Begin& begin = *message.mutable_begin();
  begin.set_job_id(job_id_);
  begin.set_key(key_);
  begin.set_silence_ms(
      static_cast<std::uint32_t>(dial_back_silence(Transport::kJoined, options_.lease).count()));
  const auto names = node_list_.names();
  for (const auto& [rank, name] : names) begin.add_hosts(name);
  for (Node& node : nodes_) {
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const auto& one) { return one.first == node.rank; });
    if (found == names.end() || node.name.empty()) continue;
    node.host = static_cast<int>(found - names.begin());
    node.name = found->second;
    begin.set_host(static_cast<std::uint32_t>(node.host));
    node.send(message);
  }
  std::exchange(on_gathered_, nullptr)(std::nullopt);
}

std::vector<Host> NodeZero::host_list() const {
  std::vector<Host> all;
  for (const auto& [rank, name] : node_list_.names()) {
    Host& host = all.emplace_back();
    host.name = name;
    host.joins = rank > 0;
    host.origin = "--node-rank";
  }
  return all;
}

bool NodeZero::is_new_interrupt(int rank) {
  const int count = ++interrupts_[rank];
  if (count <= max_interrupts_) return false;
  max_interrupts_ = count;
  return true;
}

void NodeZero::interrupt(Node& node, const join::Interrupt& message) {
  if (!node.is_new_signal(message.number())) return;
  const int signal = message.signal();
  if (job_ == nullptr || signal <= 0 || signal >= NSIG || !is_new_interrupt(node.rank)) return;
  print(node.name + " was interrupted by " + signal_name(signal));
  job_->nodes_interrupted(signal);
}

// May be called by an event of the node's stream, so the stream is destroyed in a later turn.
void NodeZero::forget(NodeIterator node) {
  node->stream->stop();
  const std::shared_ptr<DialBackStream> kept = node->stream;
  boost::asio::post(loop_, [kept] {});
  if (node->unconsumed > 0 && job_ != nullptr) job_->output_consumed(node->host, node->unconsumed);
  nodes_.erase(node);
}

void NodeZero::leave(NodeIterator node) {
  const bool was_awaited = on_gathered_ && !node->name.empty() && node->rank > 0;
  if (was_awaited) {
    node_list_.leave(node->rank);
    print("warning: " + node->name + " disconnected before all nodes had joined");
  }
  if (node->host >= 0 && !node->is_done) {
    await_reconnection(node, kAbsenceLease);
    // If its ivyrun was killed, so was its ivy-node, and the host's link will notice.
    return hosts_->mark_silent(node->name);
  }
  forget(node);
  check_all_closed();
}

void NodeZero::check_all_closed() {
  const bool all_closed =
      std::all_of(nodes_.begin(), nodes_.end(), [](const Node& one) { return !one.is_done; });
  if (on_ended_ && all_closed) {
    end_timer_.cancel();
    boost::asio::post(loop_, std::exchange(on_ended_, nullptr));
  }
}

NodeZero::Node* NodeZero::node_of_host(int host) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.host == host; });
  return found == nodes_.end() ? nullptr : &*found;
}

RemoteOutput& NodeZero::remote_output(JoinedNodesEvents& job) {
  job_ = &job;
  return *this;
}

void NodeZero::show_message(std::string_view text) {
  for (Node& node : nodes_)
    if (node.host >= 0) node.send(notice_of(text));
}

void NodeZero::show(const OutputSource& source, std::string_view bytes, bool end) {
  Node* const node = node_of_host(source.host_index);
  if (node == nullptr) {
    // The node has left, so no process will show its output.
    boost::asio::post(loop_, [this, host = source.host_index, count = bytes.size()] {
      job_->output_consumed(host, count);
    });
    return;
  }
  join::NodeZeroMessage message;
  join::Output& output = *message.mutable_output();
  output.set_rank(static_cast<std::uint32_t>(source.rank));
  output.set_stream(static_cast<std::uint32_t>(source.stream));
  output.set_bytes(std::string(bytes));
  output.set_end(end);
  node->unconsumed += bytes.size();
  node->send(message);
}

void NodeZero::begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) {
  join::NodeZeroMessage message;
  join::Attempt& attempt = *message.mutable_attempt();
  attempt.set_generation(generation);
  attempt.set_max_attempts(static_cast<std::uint32_t>(std::max(max_attempts, 0)));
  for (const PlannedHost& planned : plan.hosts) {
    if (planned.workers.empty()) continue;
    join::Part& part = *attempt.add_parts();
    part.set_host(static_cast<std::uint32_t>(planned.host_index));
    part.set_name(planned.name);
    part.set_first_rank(static_cast<std::uint32_t>(planned.workers.front().rank));
    part.set_ranks(static_cast<std::uint32_t>(planned.workers.size()));
  }
  for (Node& node : nodes_)
    if (node.host >= 0) node.send(message);
}

void NodeZero::end(int exit_code, std::function<void()> done) {
  const bool all_connected =
      std::all_of(nodes_.begin(), nodes_.end(), [](const Node& one) { return !one.absence; });
  if (all_connected) listener_->close();
  start_timer_.cancel();
  line_timer_.cancel();
  if (nodes_.empty()) return done();
  on_ended_ = std::move(done);
  for (NodeIterator node = nodes_.begin(); node != nodes_.end(); ++node) {
    node->send(end_of(exit_code));
    node->is_done = true;
    if (node->absence) await_reconnection(node, kReturnTimeout);
  }
  end_timer_.expires_after(kEndTimeout);
  end_timer_.async_wait([this](const error_code& error) {
    if (!error && on_ended_) std::exchange(on_ended_, nullptr)();
  });
}

}  // namespace ivy
