// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/rank_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/text.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::string_view kProcess = "pid ";
constexpr std::string_view kAt = " at ";
constexpr std::string_view kAnonymous = "a client at ";

// A client as it appears in the store's text.
struct NamedClient {
  std::size_t length = 0;  // Length of its name in the text.
  std::int32_t pid = 0;    // 0 if unknown.
  std::string address;     // Its address without port and brackets.
};

// Parses the name of a client that has reported its rank: "rank 3".
std::optional<std::uint32_t> rank_at(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  if (!text.starts_with(kRank)) return std::nullopt;
  std::uint32_t rank = 0;
  const auto [end, error] =
      std::from_chars(text.data() + kRank.size(), text.data() + text.size(), rank);
  return error == std::errc() ? std::optional(rank) : std::nullopt;
}

// Returns the text up to the first character that cannot be part of an address.
std::string_view word_at(std::string_view text) {
  return text.substr(0, text.find_first_of(" ,;)\n"));
}

std::string without_brackets(std::string_view address) {
  if (address.starts_with('[') && address.ends_with(']'))
    address = address.substr(1, address.size() - 2);
  return std::string(address);
}

// Parses the client at the start of the text; its length is 0 if there is none.
NamedClient client_at(std::string_view text) {
  NamedClient client;
  if (text.starts_with(kAnonymous)) {
    const std::string_view address = word_at(text.substr(kAnonymous.size()));
    client.length = kAnonymous.size() + address.size();
    client.address = without_brackets(address.substr(0, address.rfind(':')));
    return client;
  }
  if (!text.starts_with(kProcess)) return client;
  const std::string_view rest = text.substr(kProcess.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), client.pid);
  const std::string_view behind = rest.substr(static_cast<std::size_t>(end - rest.data()));
  if (error != std::errc() || client.pid <= 0 || !behind.starts_with(kAt)) return {};
  const std::string_view address = word_at(behind.substr(kAt.size()));
  client.length = text.size() - behind.size() + kAt.size() + address.size();
  client.address = without_brackets(address);
  return client;
}

bool may_come_from(const ctl::StorePeer& host, const std::string& address) {
  if (is_loopback(address)) return host.reaches_by_loopback();
  return std::find(host.addresses().begin(), host.addresses().end(), address) !=
         host.addresses().end();
}

std::vector<std::uint32_t> ranks_of(const ctl::StorePeer& host) {
  std::vector<std::uint32_t> ranks;
  for (const ctl::StoreWorker& worker : host.workers()) ranks.push_back(worker.rank());
  return ranks;
}

class RankNames {
 public:
  explicit RankNames(const ctl::StoreDescription& store) : store_(store) {
    for (const ctl::StorePeer& host : store.hosts())
      for (const ctl::StoreWorker& worker : host.workers())
        if (worker.pid() > 0) workers_.emplace(worker.pid(), LocatedRank{&host, worker.rank()});
  }

  // Explains one line, which consists of a key, its waiting clients, and the other connected
  // clients.
  std::string explain_line(std::string_view line) const {
    std::string text;
    std::set<std::uint32_t> connected;
    bool knows_all = line.find("are blocked on it") != std::string_view::npos ||
                     line.find("not waiting for it") != std::string_view::npos;
    // "and 3 more": the line does not name all clients.
    knows_all &= line.find(" more") == std::string_view::npos;
    for (std::size_t i = 0; i < line.size();) {
      // A name follows a key or another name, and is never inside a quoted key.
      const bool may_begin = line.substr(0, i).ends_with(": ") || line.substr(0, i).ends_with(", ");
      const std::string_view rest = line.substr(i);
      if (const auto rank = may_begin ? rank_at(rest) : std::nullopt) connected.insert(*rank);
      const NamedClient client = may_begin ? client_at(rest) : NamedClient{};
      if (client.length == 0) {
        text += line[i++];
        continue;
      }
      const std::optional<LocatedRank> located = rank_of(client);
      knows_all &= located.has_value();
      if (located) connected.insert(located->rank);
      text += located ? rank_text(*located, client)
                      : std::string(rest.substr(0, client.length)) + host_text(client.address);
      i += client.length;
    }
    return knows_all && !connected.empty() ? text + absent_text(connected) : text;
  }

 private:
  struct LocatedRank {
    const ctl::StorePeer* host;
    std::uint32_t rank;
  };

  // Returns the rank that this process is, unless it may be several ranks or none.
  std::optional<LocatedRank> rank_of(const NamedClient& client) const {
    std::optional<LocatedRank> located;
    const auto [first, last] = workers_.equal_range(client.pid);
    for (auto worker = first; worker != last; ++worker) {
      if (!may_come_from(*worker->second.host, client.address)) continue;
      if (located) return std::nullopt;
      located = worker->second;
    }
    return located;
  }

  static std::string rank_text(const LocatedRank& located, const NamedClient& client) {
    return "rank " + std::to_string(located.rank) + " (host " + located.host->name() + ", pid " +
           std::to_string(client.pid) + ")";
  }

  // Names the ranks that are not connected but may still connect.
  std::string absent_text(const std::set<std::uint32_t>& connected) const {
    std::vector<std::uint32_t> absent;
    for (const ctl::StorePeer& host : store_.hosts())
      for (const ctl::StoreWorker& worker : host.workers())
        if (!worker.ended() && !connected.contains(worker.rank())) absent.push_back(worker.rank());
    std::sort(absent.begin(), absent.end());
    return absent.empty() ? "" : "; not connected: " + named_ranks(absent);
  }

  // Describes a process that a rank has started, or one that has not identified itself.
  std::string host_text(const std::string& address) const {
    if (store_.hosts_size() < 2) return "";
    const ctl::StorePeer* only = nullptr;
    for (const ctl::StorePeer& host : store_.hosts()) {
      if (!may_come_from(host, address)) continue;
      if (only != nullptr) return "";
      only = &host;
    }
    if (only == nullptr || only->workers_size() == 0) return "";
    return " (host " + only->name() + ", " + named_ranks(ranks_of(*only)) + ")";
  }

  const ctl::StoreDescription& store_;
  std::multimap<std::int32_t, LocatedRank> workers_;
};

std::string ended_line(const ctl::StoreDescription& store) {
  std::vector<std::uint32_t> ended;
  for (const ctl::StorePeer& host : store.hosts())
    for (const ctl::StoreWorker& worker : host.workers())
      if (worker.ended()) ended.push_back(worker.rank());
  if (ended.empty()) return "";
  std::sort(ended.begin(), ended.end());
  return "\n" + named_ranks(ended) + (ended.size() == 1 ? " has exited" : " have exited");
}

}  // namespace

std::string explain_ranks(std::string_view explanation, const ctl::StoreDescription& store) {
  const RankNames names(store);
  std::string text;
  while (!explanation.empty())
    text += (text.empty() ? "" : "\n") + names.explain_line(take_part(explanation, '\n'));
  return text + ended_line(store);
}

std::string indented(std::string_view text) {
  std::string out = "  ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "  ";
  }
  return out;
}

}  // namespace ivy
