// SPDX-License-Identifier: Apache-2.0
// One simulated client: sends random requests in one of three protocols and records what it saw.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/dialects/native_dialect.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/engine.h"
#include "tests/rendezvous/history.h"

namespace ivy::test {

class SimulatedClient;

struct Round {
  std::uint32_t member = 0;
  std::uint64_t invoked = 0;
  std::uint64_t returned = 0;
};

struct History {
  // Operations by "generation space object". A list, because other code keeps pointers to its
  // elements.
  std::map<std::string, std::list<Operation>> objects;
  std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<Round>> rounds;  // By generation.
  std::map<std::uint32_t, std::vector<Round>> given_up;  // Arrivals without an answer.
  std::uint64_t barrier_calls = 0;                       // Numbers each arrival.
  // Returns a barrier round that released a member before all had arrived, or an empty string.
  std::string wrong_round() const;
};

// The services that a client uses.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::uint64_t pick(std::uint64_t below) = 0;
  virtual std::uint64_t now() const = 0;
  virtual void later(std::uint64_t earliest_ns, std::function<void()> what) = 0;
  virtual void deliver(store::Replies& replies) = 0;
  virtual void joined(store::ClientId id, SimulatedClient& client) = 0;
  virtual void left(store::ClientId id) = 0;
  virtual void fail(const std::string& what) = 0;
  virtual store::Engine& engine() = 0;
  virtual History& history() = 0;
};

class SimulatedClient {
 public:
  enum class Protocol { kEngine, kNative, kTorch };
  SimulatedClient(Network& network, Protocol protocol, std::uint32_t member);
  ~SimulatedClient();

  void send_request();
  // Cancels one of its requests, which may have been answered already.
  void cancel();
  void hang_up();
  // Drops a native connection, reconnects and repeats the requests that may be repeated. Bytes in
  // transit reach the old connection `late_ns` later.
  void lose_connection(std::uint64_t late_ns);
  // Returns true for a native client if every open request either may be repeated or only reads. An
  // open request with unknown effect makes the search for an order more expensive.
  bool may_dial_again() const;
  void take(const store::Reply& reply);  // Receives a reply from the engine.
  void continue_turn();                  // Executes requests left over from a turn.
  static std::vector<std::string> all_keys();

 private:
  struct Pending {
    Operation* operation = nullptr;  // Null for a barrier or a cancel.
    bool is_barrier = false;
    bool is_cancel = false;
    std::uint64_t invoked = 0;
    std::uint32_t object = 0;
    std::uint64_t number = 0;  // 0: not repeated.
  };
  // The server's side of a native connection. Without a dialect it is closed.
  struct Line {
    std::unique_ptr<store::NativeDialect> dialect;
    std::uint64_t late_ns = 0;
  };
  Operation* make_operation(std::uint32_t& object, bool& is_barrier);
  void fill(Operation& operation);
  void send(std::string bytes, store::Request request, store::RequestId id);
  void arrive(const std::string& bytes);
  void arrive(Line& line, const std::string& bytes);
  void dial();
  void end(Line& line);
  void send_to_engine(Operation& operation, std::uint32_t object);
  void send_to_torch(Operation& operation, std::uint32_t object);
  store::Request request_of(const Operation& operation, std::uint32_t object);
  std::string frame_of(const Pending& pending, std::uint32_t id, bool again = false);
  void handle_reply(const store::Reply& reply);
  void handle_bytes(const std::string& bytes);
  bool handle_torch();
  void handle_torch_wait();
  bool handle_torch_number(Operation& operation);
  bool handle_torch_text(Operation& operation);
  void handle_frame(const store::WireFrame& frame);
  void end(Pending& pending, Operation::End how);
  void give_up_barrier(const Pending& pending, std::uint64_t until_ns);
  std::string key(std::uint32_t object, std::size_t index) const;

  Network& network_;
  const Protocol protocol_;
  const std::uint32_t member_;
  const std::uint32_t generation_;
  bool closed_ = false;
  store::ClientId engine_client_ = 0;
  const std::uint64_t session_;
  std::uint64_t next_number_ = 1;
  std::shared_ptr<Line> line_;
  std::vector<std::shared_ptr<Line>> lost_;
  std::unique_ptr<store::TorchDialect> torch_;
  std::map<store::RequestId, Pending> pending_;  // By number; for torch that is the sending order.
  store::RequestId next_request_ = 1;
  std::uint64_t next_arrival_ns_ = 0;  // Requests arrive in the order of sending,
  std::uint64_t next_reply_ns_ = 0;    // and so do replies.
  store::WireDecoder decoder_{store::kMaxFrameBytes};
  std::string received_;  // For torch: bytes not parsed yet.
};

}  // namespace ivy::test
