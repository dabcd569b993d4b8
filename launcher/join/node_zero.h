// SPDX-License-Identifier: Apache-2.0
// Node 0 of torchrun mode: the launcher's side of the other nodes. Waits for their ivyruns before
// the job starts, and exchanges messages with them while it runs. The job itself is an ordinary one
// whose hosts dial back.
//
//   open ─ listen ─ gather ─┬─ all connected ─▶ Begin to each ─ Job ─ Attempt, Output, Notice ─ End
//                           └─ too few, or they differ ─▶ Notice and End to each
//
// Thread: the loop's. Lifetime: outlives the job; destroy it outside of its events and callbacks.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/core/job_request.h"
#include "launcher/join/join_key.h"
#include "launcher/join/joined_node.h"
#include "launcher/join/joined_node_list.h"
#include "launcher/links/join/joined_hosts.h"
#include "launcher/links/srun/dial_back_listener.h"
#include "proto/wire/join.pb.h"

namespace ivy {

class NodeZero : public JoinedNodes, private RemoteOutput, private DialBackListenerEvents {
 public:
  // Called with nothing once enough nodes have joined and hosts() can serve them, or else with the
  // reason why the job cannot start.
  using Gathered = std::function<void(const std::optional<Diagnostic>& rejection)>;

  // Starts to listen. An error names the port.
  static Result<std::unique_ptr<NodeZero>> open(boost::asio::io_context& loop,
                                                const JobRequest& request, const JoinKey& key);
  ~NodeZero() override;
  NodeZero(const NodeZero&) = delete;
  NodeZero& operator=(const NodeZero&) = delete;

  // Prints one line for the user: to standard error, and on the job's screen once there is one.
  void print(const std::string& line) const;
  // Waits for the other nodes, until --start-timeout at most, then calls on_gathered.
  void gather(Gathered on_gathered);
  // Returns the hosts of the job by rank. Call after gather() has finished.
  std::vector<Host> host_list() const;
  // Sends all nodes the reason why the job will not start, and calls on_sent when they have it.
  void reject(const Diagnostic& why, std::function<void()> on_sent);

  // Counts an interrupt of the ivyrun of this node by its user. A scheduler may send the same
  // signal to every node, so it counts as a second interrupt only from a node that has sent the
  // first. Returns whether it is a new one for the job.
  bool is_new_interrupt(int rank);

  std::shared_ptr<DialBackHosts> hosts() override { return hosts_; }
  RemoteOutput& remote_output(JoinedNodesEvents& job) override;
  void begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) override;
  void end(int exit_code, std::function<void()> done) override;

 private:
  struct Node;
  using NodeIterator = std::list<Node>::iterator;

  NodeZero(boost::asio::io_context& loop, const JobRequest& request);
  Result<void> listen(const JoinKey& key);
  // DialBackListenerEvents
  void host_dialled(std::uint32_t host, std::shared_ptr<DialBackStream> stream) override {
    hosts_->deliver(host, std::move(stream));
  }
  void signal_reported(const DialGreeting&) override {}
  void node_dialled(std::uint32_t rank, std::shared_ptr<DialBackStream> stream) override;
  void peer_rejected(const std::string& address, const std::string& why) override;
  void take_bytes(NodeIterator node, std::string_view bytes);
  // Handles one message. Returns false to drop the connection.
  bool take(NodeIterator node, const join::NodeMessage& message);
  // A node joins, or reconnects (reattach()).
  void admit(NodeIterator node, const join::Join& message);
  bool reattach(NodeIterator node, const join::Join& message);
  void await_reconnection(NodeIterator node, std::chrono::milliseconds timeout);
  void check_all_closed();
  void interrupt(Node& node, const join::Interrupt& message);
  void leave(NodeIterator node);   // The node's connection has closed.
  void forget(NodeIterator node);  // Removes the node.
  void check_gathered(bool timed_out);
  void begin_job();  // Sends Begin to all nodes.
  void schedule_waiting_line();
  // RemoteOutput
  bool shows_elsewhere(int host_index) const override { return host_index > 0; }
  void show(const OutputSource& source, std::string_view bytes, bool end) override;
  void show_message(std::string_view text) override;
  Node* node_of_host(int host);  // The node with this number in the job; null: none.

  boost::asio::io_context& loop_;
  const Options options_;
  const std::string job_id_;
  const std::string key_;  // Random, for the ivy-nodes of this job: a node gets it with Begin.
  JoinedNodeList node_list_;
  std::shared_ptr<JoinedHosts> hosts_;
  std::shared_ptr<DialBackListener> listener_;
  std::list<Node> nodes_;  // Connected nodes, and nodes that may reconnect.
  Gathered on_gathered_;   // Set by gather() until it is called.
  std::int64_t gathers_until_ns_ = 0;
  std::map<int, int> interrupts_;  // Interrupts of each node.
  int max_interrupts_ = 0;         // Interrupts of the node with the most: interrupts of the job.
  JoinedNodesEvents* job_ = nullptr;  // Null before the job.
  std::function<void()> on_ended_;    // Set by end() until it is called.
  boost::asio::steady_timer start_timer_, line_timer_, end_timer_;
};

}  // namespace ivy
