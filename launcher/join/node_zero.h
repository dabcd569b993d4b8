// SPDX-License-Identifier: Apache-2.0
// Node 0 of torchrun mode: waits for the other nodes' ivyruns before the job starts, and exchanges
// messages with them while it runs. The job itself is an ordinary one whose hosts dial back.
//
//   open ─ listen ─ gather ─┬─ all connected ─▶ Begin to each ─ Job ─ Attempt, Output, Said ─ End
//                           └─ too few, or they differ ─▶ Said and End to each
//
// Thread: the loop's. Lifetime: outlives the job; destroy it outside its handlers.
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
#include <vector>

#include "launcher/job/job_request.h"
#include "launcher/join/join_key.h"
#include "launcher/join/join_roll.h"
#include "launcher/join/joined_node.h"
#include "launcher/links/join/joined_hosts.h"
#include "launcher/links/srun/dial_back_listener.h"
#include "proto/wire/join.pb.h"

namespace ivy {

class NodeZero : public JoinedNodes, private OutputElsewhere {
 public:
  // Empty if all nodes are there and hosts() has been filled; otherwise the reason why the job
  // cannot start.
  using Gathered = std::function<void(const std::optional<Diagnostic>& refusal)>;
  // Prints one line for the user, before the job has a screen.
  using Say = std::function<void(const std::string& line)>;

  // Starts to listen. Unavailable names the port.
  static Result<std::unique_ptr<NodeZero>> open(boost::asio::io_context& loop,
                                                const JobRequest& request, const JoinKey& key,
                                                Say say);
  ~NodeZero() override;
  NodeZero(const NodeZero&) = delete;
  NodeZero& operator=(const NodeZero&) = delete;

  // Call it once the job has a screen.
  void set_say(Say say) { say_ = std::move(say); }
  void gather(Gathered gathered);
  // Returns the hosts by rank, after gather() has finished.
  std::vector<Host> host_list() const;
  // Tells all nodes why the job will not start.
  void refuse(const Diagnostic& why, std::function<void()> told);

  // A user has interrupted the ivyrun of this node. A scheduler may send the same signal to every
  // node, so it counts as the second one only from a node that has sent the first. Returns whether
  // it counts.
  bool is_new_interrupt(int rank);
  void set_interrupt_handler(std::function<void(int signal)> handler) {
    on_interrupt_ = std::move(handler);
  }

  std::shared_ptr<DialBackHosts> hosts() override { return hosts_; }
  OutputElsewhere& elsewhere(OutputEvents& job) override;
  void begin_attempt(std::uint32_t generation, int max_attempts, const JobPlan& plan) override;
  void end(int exit_code, std::function<void()> done) override;

 private:
  using Node = JoinedNode;
  using NodePlace = std::list<Node>::iterator;

  NodeZero(boost::asio::io_context& loop, const JobRequest& request, Say say);
  Result<void> listen(const JoinKey& key);
  void enter(std::uint32_t rank, std::shared_ptr<DialBackStream> stream);
  bool take(NodePlace node, const join::NodeSays& message);
  void take_in(NodePlace node, const join::Join& message);
  bool take_back(NodePlace node, const join::Join& message);
  void await_return(NodePlace node, std::chrono::milliseconds patience);
  void check_all_told();
  void interrupt(Node& node, const join::Interrupt& message);
  void leave(NodePlace node);
  void forget(NodePlace node);
  void check_gathered(bool is_time_up);
  void begin_job();
  void schedule_waiting_line();
  // OutputElsewhere
  bool holds(int host_index) const override { return host_index > 0; }
  void show(const Lane& lane, std::string_view bytes, bool end) override;
  void show_message(std::string_view text) override;
  Node* of_host(int host);

  boost::asio::io_context& loop_;
  const Options options_;
  const std::string job_id_;
  Say say_;
  const std::string key_;  // The job's key, for its hosts.
  JoinRoll roll_;
  std::shared_ptr<JoinedHosts> hosts_;
  std::shared_ptr<DialBackListener> listener_;
  std::list<Node> nodes_;
  Gathered gathered_;
  std::int64_t gathers_until_ns_ = 0;
  std::map<int, int> interrupts_;
  int most_interrupts_ = 0;
  std::function<void(int)> on_interrupt_;
  OutputEvents* job_ = nullptr;  // Learns which output was shown; null before the job.
  std::function<void()> ended_;
  boost::asio::steady_timer start_timer_, line_timer_, end_timer_;
};

}  // namespace ivy
