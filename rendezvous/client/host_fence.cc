// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/host_fence.h"

#include <algorithm>
#include <numeric>

namespace ivy::store {
namespace {

// A fence waits for missing hosts without a timeout; the job's own limits end it.
constexpr auto kNoTimeout = Client::Milliseconds::max();

std::string key_of(const std::string& prefix, std::uint64_t round, std::uint32_t host) {
  return prefix + "/" + std::to_string(round) + "/" + std::to_string(host);
}

// Reads all values with one request if they fit into one reply, otherwise one by one.
Result<std::vector<std::string>> values_of(Client& client, const Client::Names& keys) {
  Result<std::vector<std::string>> all = client.multi_get(keys);
  if (all.ok() || all.error().code != Code::kResourceExhausted) return all;
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(IVY_TRY(client.get(key)));
  return values;
}

}  // namespace

Result<std::vector<std::string>> HostFence::gather(std::string_view own) {
  std::vector<std::uint32_t> all(position_.hosts);
  std::iota(all.begin(), all.end(), 0u);
  return gather_round(all, "ivy/" + name_, own);
}

Result<std::vector<std::string>> HostFence::gather_among(const std::vector<std::uint32_t>& hosts,
                                                         const std::string& group,
                                                         std::string_view own) {
  if (std::find(hosts.begin(), hosts.end(), position_.host) == hosts.end() || group.empty() ||
      group.find('/') != std::string::npos)
    return Error{Code::kInvalidArgument, "fence '" + group + "': host " +
                                             std::to_string(position_.host) + " is not a member"};
  return gather_round(hosts, prefix_of(group), own);
}

Result<void> HostFence::forget(const std::vector<std::uint32_t>& hosts, const std::string& group) {
  const std::string prefix = prefix_of(group);
  std::uint64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto rounds = rounds_.find(prefix);
    // A group of one host stores no keys.
    if (rounds == rounds_.end() || rounds->second.first_kept == rounds->second.next) return {};
    last = rounds->second.next - 1;
    rounds->second.first_kept = rounds->second.next;
  }
  const std::string counter = prefix + "/left";
  if (IVY_TRY(client_.add(counter, 1)) != static_cast<std::int64_t>(hosts.size())) return {};
  for (const std::uint32_t host : hosts) IVY_CHECK(client_.remove(key_of(prefix, last, host)));
  IVY_CHECK(client_.remove(counter));
  return {};
}

Result<std::vector<std::string>> HostFence::gather_round(const std::vector<std::uint32_t>& hosts,
                                                         const std::string& prefix,
                                                         std::string_view own) {
  if (hosts.size() == 1) return std::vector<std::string>{std::string(own)};
  std::uint64_t round = 0;
  bool is_first_kept = true;
  {
    const std::lock_guard lock(mutex_);
    Rounds& rounds = rounds_[prefix];
    round = rounds.next++;
    is_first_kept = round == rounds.first_kept;
  }
  Client::Names keys;
  for (const std::uint32_t host : hosts) keys.push_back(key_of(prefix, round, host));
  IVY_CHECK(client_.set(key_of(prefix, round, position_.host), own));
  IVY_CHECK(client_.wait(keys, kNoTimeout));
  std::vector<std::string> values = IVY_TRY(values_of(client_, keys));
  // Every host has started this round, so every host has finished reading the previous one.
  if (!is_first_kept) (void)client_.remove(key_of(prefix, round - 1, position_.host));
  return values;
}

}  // namespace ivy::store
