// SPDX-License-Identifier: Apache-2.0
// A barrier with data between one process per host of a job: each contributes a blob, and each gets
// the blobs of all. PMI's fences cross hosts with it.
//
// A round is one key per host, "ivy/NAME/ROUND/HOST". Subsets of the hosts have their own rounds,
// "ivy/NAME/GROUP/ROUND/HOST". When a round is complete, every host has read the previous one and
// removes its key of that round. The store forgets all keys between generations, so each generation
// starts with its own rounds.
//
// Not thread-safe for one name or group; different groups may run concurrently. Lifetime: the
// client outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::store {

class HostFence {
 public:
  // The number of this host in the job, from 0, and the number of hosts.
  struct HostPosition {
    std::uint32_t host = 0;
    std::uint32_t hosts = 1;
  };

  // `name` is the user of the fence, such as "pmi" or "pmix"; no other part of the job may use it.
  HostFence(Client& client, std::string name, HostPosition position)
      : client_(client), name_(std::move(name)), position_(position) {}

  // Blocks until every host has contributed its blob to this round; the result is in host order. A
  // blob has at most kMaxValueBytes. Waits for a missing host until the client is cancelled
  // (Cancelled) or the store is unreachable (the client's error).
  Result<std::vector<std::string>> gather(std::string_view own);
  // gather() among a subset of hosts, which all pass the same group. The result is in the order of
  // `hosts`, which must be the same on all of them and include this host. `group` is a non-empty
  // word without '/'.
  Result<std::vector<std::string>> gather_among(const std::vector<std::uint32_t>& hosts,
                                                const std::string& group, std::string_view own);
  // Removes the keys of a group's rounds from the store. Every host of the group calls it after the
  // same round; the last caller removes the keys. The group may start the next round immediately.
  Result<void> forget(const std::vector<std::uint32_t>& hosts, const std::string& group);

 private:
  std::string prefix_of(const std::string& group) const { return "ivy/" + name_ + "/" + group; }
  Result<std::vector<std::string>> gather_round(const std::vector<std::uint32_t>& hosts,
                                                const std::string& prefix, std::string_view own);

  // Round numbers keep increasing after forget(): a fast host must not read keys that a slow host
  // has not deleted yet.
  struct Rounds {
    std::uint64_t next = 0;
    std::uint64_t first_kept = 0;  // The store holds no earlier round.
  };

  Client& client_;
  const std::string name_;
  const HostPosition position_;
  std::mutex mutex_;
  std::map<std::string, Rounds> rounds_;
};

}  // namespace ivy::store
