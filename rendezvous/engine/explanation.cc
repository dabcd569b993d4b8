// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/explanation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "proto/contract/text.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

constexpr std::size_t kMaxLines = 64;
constexpr std::size_t kNamedPerLine = 8;

std::string seconds(std::uint64_t from_ns, std::uint64_t to_ns) {
  return tenths_text(to_ns > from_ns ? static_cast<std::int64_t>(to_ns - from_ns) : 0);
}

// A client's name for people: its rank, or, if that is unknown, its pid and address. One rank may
// have several connections.
struct ClientName {
  std::string name;
  bool operator<(const ClientName& other) const {
    return name.size() != other.name.size() ? name.size() < other.name.size() : name < other.name;
  }
};

ClientName client_name(const ClientInfo& info) {
  if (info.rank) return {"rank " + std::to_string(*info.rank)};
  if (info.pid != 0) {
    // Leave out the port: a process may have several connections.
    const std::string host = info.address.substr(0, info.address.rfind(':'));
    return {"pid " + std::to_string(info.pid) + " at " + host};
  }
  return {"a client at " + info.address};
}

struct Wanted {
  std::map<ClientName, std::uint64_t> waiting;  // The clients, and when their waits began.
  std::vector<std::uint32_t> absent;            // The first few absent members of a barrier.
  std::size_t absent_count = 0;
};

// The last request of each client, of one dialect or of all.
using LastRequests = std::map<ClientName, const LastRequest*>;
LastRequests last_requests_of(const WaitGraph& graph, std::optional<Space> only) {
  LastRequests requests;
  for (const LastRequest& last : graph.clients) {
    if (only && last.client.space != *only) continue;
    const LastRequest*& known = requests[client_name(last.client)];
    if (known == nullptr || known->last_ns < last.last_ns) known = &last;
  }
  return requests;
}

std::string absent_members(const Wanted& wanted) {
  std::vector<std::string> members;
  for (const std::uint32_t member : wanted.absent) members.push_back(std::to_string(member));
  return (wanted.absent_count == 1 ? "this member has not arrived: "
                                   : "these members have not arrived: ") +
         shown_list(members, wanted.absent_count, kNamedPerLine);
}

// Names the connected clients that do not wait for this, and how long each has been silent.
std::string others(const Wanted& wanted, const LastRequests& requests, std::uint64_t now_ns) {
  std::vector<std::string> names;
  for (const auto& [name, seen] : requests) {
    if (wanted.waiting.contains(name)) continue;
    names.push_back(name.name + " (silent for " + seconds(seen->last_ns, now_ns) +
                    ", last: " + shown_key(seen->last_request) + ")");
  }
  if (names.empty()) return "all connected clients are blocked on it";
  return "not waiting for it: " + shown_list(names, names.size(), kNamedPerLine);
}

std::string line_of(const std::string& what, const Wanted& wanted, const LastRequests& requests,
                    std::uint64_t now_ns) {
  std::vector<std::string> names;
  std::uint64_t oldest = now_ns;
  for (const auto& [name, since] : wanted.waiting) {
    names.push_back(name.name);
    oldest = std::min(oldest, since);
  }
  const bool one = names.size() == 1;
  return what + ": " + shown_list(names, names.size(), kNamedPerLine) +
         (one ? " has waited for " : " have waited, the longest for ") + seconds(oldest, now_ns) +
         "; " + (wanted.absent.empty() ? others(wanted, requests, now_ns) : absent_members(wanted));
}

}  // namespace

std::string explain_absence(const WaitGraph& graph, const Waiting& overdue, std::uint64_t now_ns) {
  const LastRequests requests = last_requests_of(graph, overdue.client.space);
  const auto is_wanted = [&](const std::string& key) {
    return std::find(overdue.missing.begin(), overdue.missing.end(), key) != overdue.missing.end();
  };
  Wanted wanted;
  wanted.waiting.emplace(client_name(overdue.client), overdue.since_ns);
  for (const Waiting& waiting : graph.waiting) {
    const bool is_same = overdue.missing.empty() ? waiting.what == overdue.what
                                                 : std::any_of(waiting.missing.begin(),
                                                               waiting.missing.end(), is_wanted);
    if (is_same) wanted.waiting.emplace(client_name(waiting.client), waiting.since_ns);
  }
  return others(wanted, requests, now_ns);
}

std::string explain(const WaitGraph& graph, std::uint64_t now_ns) {
  const LastRequests requests = last_requests_of(graph, std::nullopt);
  std::map<std::string, Wanted> by_resource;
  for (const Waiting& waiting : graph.waiting) {
    std::vector<std::string> resources;
    for (const std::string& key : waiting.missing)
      resources.push_back(waiting.what + " '" + shown_key(key) + "'");
    if (resources.empty()) resources.push_back(waiting.what);
    for (const std::string& what : resources) {
      Wanted& wanted = by_resource[what];
      const auto [entry, fresh] =
          wanted.waiting.emplace(client_name(waiting.client), waiting.since_ns);
      if (!fresh) entry->second = std::min(entry->second, waiting.since_ns);
      wanted.absent = waiting.absent;
      wanted.absent_count = waiting.missing_count;
    }
  }
  if (by_resource.empty())
    return graph.clients.empty() ? "store: no blocked requests (no clients connected)"
                                 : "store: no blocked requests";
  std::string text;
  std::size_t lines = 0;
  for (const auto& [what, wanted] : by_resource) {
    if (lines++ > 0) text += "\n";
    if (lines == kMaxLines) {
      return text + "and " + std::to_string(by_resource.size() - kMaxLines + 1) + " more";
    }
    text += line_of(what, wanted, requests, now_ns);
  }
  return text;
}

}  // namespace ivy::store
