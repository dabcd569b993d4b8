// SPDX-License-Identifier: Apache-2.0
// The store's contents and rules as a state machine: a request and a time go in, replies come out.
// No socket, no clock, no thread; the same requests in the same order give the same replies.
//
// Values are bytes. A request for a missing key waits or fails with NotFound; it never returns an
// empty value. Numbers (add) are kept as ASCII decimals in the same keys, as torch does, so a get
// after an add returns "3".
//
// Generations: a client belongs to the generation that it named. begin_generation(g) forgets all
// keys, queues, barriers and waiters of the previous one; its clients get Aborted for waiting
// requests and FailedPrecondition for later ones. Nothing written in one generation can be read in
// the next.
//
// Spaces: each dialect has its own keys, so a framework's keys never collide with ivyrun's.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/answered_requests.h"
#include "rendezvous/engine/contents.h"
#include "rendezvous/engine/requests.h"
#include "rendezvous/engine/wait_graph.h"
#include "rendezvous/engine/waiters.h"
#include "rendezvous/engine/watches.h"

namespace ivy::store {

class Engine {
 public:
  explicit Engine(EngineLimits limits = {}) : limits_(limits), contents_(limits) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Adds a client. Fails with FailedPrecondition if its generation is not the current one.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns);
  // Removes a client: its waits and watches are dropped, its writes remain. Clients that must learn
  // of the loss get their answers in the next advance().
  void leave(ClientId client);
  // Sets the pid of a client, which torch's ping contains.
  void describe(ClientId client, std::uint32_t pid);

  // Executes a request. Appends all replies that result, its own and those of clients that waited
  // for it, to `out` in the order in which they must be sent. A client's requests are answered in
  // order unless they wait.
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns, Replies& out);
  // Answers overdue waits with DeadlineExceeded. The text names the missing keys, the time waited,
  // and the clients that do not wait for these keys, each with the length of its silence. If very
  // many waits are due at the same time, only some texts name clients. Returns the next deadline,
  // or kNever.
  std::uint64_t advance(std::uint64_t now_ns, Replies& out);

  // Cancels a watch without an answer.
  void end_watch(ClientId client, RequestId request) { watches_.end(client, request); }
  void begin_generation(std::uint32_t generation, Replies& out);
  std::uint32_t generation() const { return generation_; }

  // Returns which clients wait for what, without `asker` if it has sent no other request
  // (wait_graph.h).
  WaitGraph wait_graph(ClientId asker = 0) const {
    return wait_graph_of(waiters_, contents_, clients_, asker);
  }
  std::size_t bytes() const { return contents_.bytes(); }
  std::size_t key_count() const { return contents_.keys(); }
  std::size_t open_requests() const { return waiters_.size(); }
  // Returns nothing if no request waits.
  std::optional<std::uint64_t> longest_wait_since_ns() const { return waiters_.oldest_ns(); }
  std::size_t waiting_bytes() const { return waiters_.bytes(); }
  // Increases with every write and every satisfied wait, so it shows whether the job makes
  // progress.
  std::uint64_t changes() const { return contents_.changes(); }
  // Number of executed requests.
  std::uint64_t requests() const { return requests_; }

 private:
  void serve(const Numbered& numbered, SessionId session, Request request, Serving& here);
  std::string overdue_text(const Waiting& overdue, std::uint64_t now_ns);
  // Counts an explanation. Returns false if there were too many lately.
  bool admit_explanation(std::uint64_t now_ns);
  void note_loss(const Waiter& waiter);
  void answer_lost_barriers(Replies& out);

  const EngineLimits limits_;
  std::uint32_t generation_ = 0;
  Contents contents_;
  mutable Waiters waiters_;  // Describing a wait updates its missing keys.
  Watches watches_;
  AnsweredRequests answered_;
  Clients clients_;
  ClientId next_client_ = 1;
  std::vector<std::pair<Space, std::string>> lost_barriers_;  // Their waiters must be answered.
  std::uint64_t requests_ = 0;
  std::uint64_t explained_since_ns_ = 0;  // Start of the window of `explained_`.
  std::size_t explained_ = 0;             // Timeouts that were explained in this window.
};

}  // namespace ivy::store
