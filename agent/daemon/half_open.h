// The connections over TCP that have not proved anything yet: how many there may be, whose turn it
// is to go, and who may be meant when gRPC refuses one of them without saying which.
//
//   waiting   its first bytes are awaited; the acceptor can still close it
//   handed    gRPC does its handshake; gRPC alone closes it, within its own deadline
//
// Pure but for its lock: time is an argument. Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace ivy {

struct HalfOpenLimits {
  std::size_t total = 256;
  std::size_t per_address = 64;
  // How long gRPC's handshake may take, and a little more.
  std::chrono::milliseconds handshake{6000};
};

class HalfOpen {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = std::uint64_t;

  struct Entrance {
    std::optional<Id> id;       // Nothing: refused.
    std::optional<Id> evicted;  // Of the waiting ones: close it, it has left.
    std::string why;            // Which limit was reached, when it was refused or one evicted.
  };

  explicit HalfOpen(HalfOpenLimits limits = {}) : limits_(limits) {}

  // `address` is numeric, `peer` is address and port: "10.77.0.1:41234".
  Entrance enter(const std::string& address, const std::string& peer, Time now);
  // False when it was evicted meanwhile: close it.
  bool hand_over(Id id, Time now);
  bool holds(Id id) const;
  void leave(Id id);

  // A call came over this connection: its certificate has been believed.
  void prove(const std::string& peer);
  // Who a refusal inside a handshake may be about: "10.77.0.9:4411", or "one of ...".
  std::string suspects() const;
  // Forgets those whose handshake must have ended one way or the other.
  void expire(Time now);
  std::size_t size() const;

 private:
  struct Entry {
    std::string address;
    std::string peer;
    bool handed = false;
    Time since;
  };
  std::optional<Id> oldest_waiting(const std::string* address) const;
  void remove(Id id);

  mutable std::mutex mutex_;
  HalfOpenLimits limits_;
  std::map<Id, Entry> entries_;  // By age: numbers grow.
  std::map<std::string, std::size_t> per_address_;
  Id next_ = 1;
};

}  // namespace ivy
