// SPDX-License-Identifier: Apache-2.0
// Watches of clients: each reports changes of all keys with a prefix, or of one key. Pure. Not
// thread-safe.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/engine/requests.h"

namespace ivy::store {

class Watches {
 public:
  struct Entry {
    ClientId client = 0;
    RequestId request = 0;
    std::string key;  // A prefix unless the watch is exact.
  };

  std::size_t count(ClientId client) const;
  void add(Space space, Entry watch, bool is_exact);
  // Ends one watch of the client, or all of them.
  void end(ClientId client, std::optional<RequestId> only = std::nullopt);
  void clear();
  bool empty() const { return counts_.empty(); }
  void notify(Space space, const Changed& change, Replies& out);

 private:
  void count_down(ClientId client, std::size_t by);

  std::array<std::vector<Entry>, kSpaces> by_prefix_;
  std::array<std::unordered_multimap<std::string, Entry>, kSpaces> by_key_;
  std::unordered_map<ClientId, std::size_t> counts_;
};

}  // namespace ivy::store
