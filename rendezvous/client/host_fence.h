// A meeting of one process on each host of a job: each gives a blob, and each gets the blobs of
// all. It is how PMI's fences cross hosts.
//
// A round is one key per host, "ivy/NAME/ROUND/HOST"; those of a subset of the hosts, which have
// rounds of their own, are "ivy/NAME/GROUP/ROUND/HOST". When a round is complete
// everybody has read the one before: a host then removes its key of that. Another generation of the
// job begins with rounds of its own, as the store forgets what the one before has written.
//
// Thread: one at a time for each name or group; different groups may meet at once. Lifetime: the
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
  // One host's place in the job, from 0.
  struct Place {
    std::uint32_t host = 0;
    std::uint32_t hosts = 1;
  };

  // `name`: what meets, such as "pmi" or "pmix"; no other part of the job uses it.
  HostFence(Client& client, std::string name, Place place)
      : client_(client), name_(std::move(name)), place_(place) {}

  // Blocks until every host has given its blob for this round; the result is in host order. A blob
  // has at most kMaxValueBytes. A host that never comes is waited for until the client is cancelled
  // (Cancelled) or the store is lost (the client's error).
  Result<std::vector<std::string>> gather(std::string_view own);
  // The same among some hosts, which all name the same group; the result is in the order of
  // `hosts`, which is the same everywhere and has this host in it. `group`: a word without '/'.
  Result<std::vector<std::string>> gather_among(const std::vector<std::uint32_t>& hosts,
                                                const std::string& group, std::string_view own);
  // The last of a group's hosts to say it removes what their meetings so far have left in the
  // store. All say it, each after the same meeting; they may meet again at once.
  Result<void> forget(const std::vector<std::uint32_t>& hosts, const std::string& group);

 private:
  std::string prefix_of(const std::string& group) const { return "ivy/" + name_ + "/" + group; }
  Result<std::vector<std::string>> meet(const std::vector<std::uint32_t>& hosts,
                                        const std::string& prefix, std::string_view own);

  // Those of one prefix go on behind what is forgotten: a host that is early would read what a late
  // one has not removed yet.
  struct Rounds {
    std::uint64_t next = 0;
    std::uint64_t first_kept = 0;  // The store holds none before it.
  };

  Client& client_;
  const std::string name_;
  const Place place_;
  std::mutex mutex_;
  std::map<std::string, Rounds> rounds_;
};

}  // namespace ivy::store
