// SPDX-License-Identifier: Apache-2.0
// State that the links of one job share: the node binary, the limit of concurrent handshakes, the
// user's identity towards agents, the threads for calls that may block, and the transport that has
// reached each host. Thread: the loop's. Lifetime: outlives every link (links hold it by shared
// pointer).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "launcher/links/agent_identity.h"
#include "launcher/links/agent_transport.h"
#include "launcher/links/node_program.h"
#include "launcher/links/node_upload.h"
#include "launcher/options/hosts.h"
#include "launcher/options/options.h"
#include "launcher/streams/sequence.h"
#include "proto/contract/remote_text.h"
#include "proto/os/blocking.h"

namespace ivy {

class DialBackHosts;

// A semaphore with `count` slots. Coroutines get slots in the order in which they wait.
class Slots {
 public:
  // Holds a slot as long as it exists. Null: no slot is held.
  using Ticket = std::shared_ptr<void>;

  Slots(boost::asio::io_context& loop, int count) : loop_(loop), free_(count) {}
  // Waits for a slot. A slot for a coroutine that has ended goes to the next one.
  Awaitable<Ticket> acquire(Sequence& sequence);

 private:
  void grant_soon();
  void grant_next();

  boost::asio::io_context& loop_;
  int free_;
  std::deque<Arrival<Ticket>> waiting_;
  std::shared_ptr<Slots*> self_ = std::make_shared<Slots*>(this);
};

// Implemented by the owner of a context: class Job.
class TransportEvents {
 public:
  // A line for the user ("note: ...", "warning: ..."), without a newline.
  virtual void transport_note(const RemoteText& text) = 0;
  // Slurm has sent a signal to the job's step. whole_tree: every process of the step has received
  // it. Hosts that report the same signal more than SrunStep::kSameSignal apart cause two calls.
  virtual void step_signalled(int signal, bool whole_tree) = 0;

 protected:
  ~TransportEvents() = default;
};

class TransportContext {
 public:
  // node: ivy-node of this build. make_agent_link: agent_link_maker(); tests without agents omit
  // it.
  TransportContext(boost::asio::io_context& loop, const Options& options, NodeProgram node,
                   MakeAgentLink make_agent_link = {});
  TransportContext(const TransportContext&) = delete;
  TransportContext& operator=(const TransportContext&) = delete;

  boost::asio::io_context& loop() { return loop_; }
  const Options& options() const { return options_; }
  const NodeProgram& node() const { return node_; }

  // Limits the hosts that are logged in to at the same time (--fanout).
  Slots& handshakes() { return handshakes_; }
  // The terminal, for one question at a time.
  Slots& terminal() { return terminal_; }
  // Returns the bundles of this build, which are read on the pool when the first host needs them.
  Awaitable<Result<std::shared_ptr<NodeUpload>>> node_upload(Sequence& sequence);
  // Returns the bundle for hosts of this architecture; reads it on the pool.
  Awaitable<Result<NodeBundle>> bundle(Sequence& sequence, std::string architecture);
  // The pool for tasks that may block: known_hosts, keys, the SSH agent, libssh's logins.
  BlockingPool& blocking();
  // Threads for name lookups, so that a slow name server delays only its own caller.
  boost::asio::thread_pool& resolvers();
  // Returns a random number in [0.5, 1.5), by which pauses are multiplied so that hosts do not
  // retry together.
  double jitter();

  // Reads on the pool the user's files and the account, as far as make_link() and links to agents
  // need them, then calls back on the loop. Without this call they are read on first use, on the
  // loop.
  void prepare_agents(std::function<void()> done);
  const MakeAgentLink& make_agent_link() const { return make_agent_link_; }
  // Returns the user's identity towards agents, which is read once. An error is printed once.
  const Result<std::optional<AgentIdentity>>& agent_identity();
  // Returns agent_identity(), with an error if the user has none.
  Result<const AgentIdentity*> agent_user();
  // Returns the socket of this host's own agent, which is looked up once.
  const Result<std::string>& agent_socket();

  // Returns the state that the links of one transport share, such as SshState. It is created on
  // first use.
  template <class Part>
  std::shared_ptr<Part> part() {
    std::shared_ptr<void>& kept = parts_[typeid(Part)];
    if (!kept) kept = std::make_shared<Part>(*this);
    return std::static_pointer_cast<Part>(kept);
  }

  // torchrun mode: the nodes that have joined; else null.
  const std::shared_ptr<DialBackHosts>& joined_hosts() const { return joined_hosts_; }
  void set_joined_hosts(std::shared_ptr<DialBackHosts> hosts) { joined_hosts_ = std::move(hosts); }

  // Returns kAgent or kSsh if the host has come up by one of them, by which it is then redialled.
  std::optional<Transport> transport_of(const Host& host) const;
  void remember_transport(const Host& host, Transport kind);
  // Marks a host on which ivy-node exited without output.
  void mark_damaged(const Host& host, bool is_damaged) {
    if (is_damaged)
      damaged_hosts_.insert(host.name);
    else
      damaged_hosts_.erase(host.name);
  }
  // Returns the remote command for a host, which installs ivy-node again if it is damaged there.
  const std::string& command_for(const NodeUpload& upload, const Host& host) const {
    return damaged_hosts_.contains(host.name) ? upload.repairing_command()
                                              : upload.remote_command();
  }

  void set_events(TransportEvents& events) { events_ = &events; }
  // Prints one line for the user (TransportEvents). Without -v, only three of one kind are printed,
  // because many hosts of a cluster often share one problem.
  void note(const std::string& kind, const RemoteText& text);
  void step_signalled(int signal, bool whole_tree) {
    if (events_ != nullptr) events_->step_signalled(signal, whole_tree);
  }

 private:
  void take_identity(Result<std::optional<AgentIdentity>> identity);

  // This many lookups can wait for a silent name server before other lookups have to wait.
  static constexpr std::size_t kResolverThreads = 16;

  boost::asio::io_context& loop_;
  const Options options_;
  const NodeProgram node_;
  const MakeAgentLink make_agent_link_;
  Slots handshakes_;
  Slots terminal_;
  bool reads_upload_ = false;
  std::optional<Result<std::shared_ptr<NodeUpload>>> upload_;
  std::vector<Arrival<bool>> waiting_for_upload_;
  std::map<std::type_index, std::shared_ptr<void>> parts_;
  std::optional<Result<std::optional<AgentIdentity>>> agent_identity_;
  std::optional<Result<std::string>> agent_socket_;
  std::map<std::string, Transport> transports_;
  std::set<std::string> damaged_hosts_;
  std::shared_ptr<DialBackHosts> joined_hosts_;
  std::map<std::string, int> notes_;   // Number of notes of each kind.
  std::set<std::string> noted_;        // Printed texts: each is printed once.
  TransportEvents* events_ = nullptr;  // Null before set_events().
  std::minstd_rand random_;
  std::unique_ptr<boost::asio::thread_pool> resolvers_;
  std::unique_ptr<BlockingPool> blocking_;
};

// Waits until is_over() returns true. `listen` gets a function to call when that may have changed.
// After 4 s, and again whenever the wait has doubled, tells the user: "node2 waits for the SSH
// agent at /tmp/agent, 4 s".
Awaitable<void> wait_and_report(Sequence& sequence, TransportContext& context, std::string host,
                                std::string what, std::function<bool()> is_over,
                                std::function<void(const Arrival<bool>&)> listen);

// Runs work() on the context's pool as a step of a sequence, and returns its result; reports a long
// wait as wait_and_report() does. work() must own everything that it uses, because it may outlive
// the caller.
template <class Work>
Awaitable<std::invoke_result_t<Work&>> call_blocking(Sequence& sequence, TransportContext& context,
                                                     std::string host, std::string what,
                                                     BlockingPool::Duration deadline, Work work) {
  using Answer = std::invoke_result_t<Work&>;
  struct Slot {
    std::optional<Answer> answer;
    Arrival<bool> arrive;
  };
  const auto slot = std::make_shared<Slot>();
  const auto done = [slot](Answer answer) {
    slot->answer.emplace(std::move(answer));
    if (const Arrival<bool> arrive = std::exchange(slot->arrive, {})) arrive(true);
  };
  context.blocking().run(what, deadline, std::move(work), done);
  const std::function<bool()> is_over = [slot] { return slot->answer.has_value(); };
  const std::function<void(const Arrival<bool>&)> listen = [slot](const Arrival<bool>& arrive) {
    slot->arrive = arrive;
  };
  co_await wait_and_report(sequence, context, std::move(host), std::move(what), is_over, listen);
  co_return std::move(*slot->answer);
}

}  // namespace ivy
