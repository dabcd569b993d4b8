#include "launcher/rank_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <vector>

namespace ivy {
namespace {

constexpr std::string_view kProcess = "pid ";
constexpr std::string_view kAt = " at ";
constexpr std::string_view kAnonymous = "a client at ";

// A client as the store names it.
struct NamedClient {
  std::size_t length = 0;  // Of its name in the text.
  std::int32_t pid = 0;    // 0: not known.
  std::string address;     // Without port and brackets.
};

// Up to what cannot stand in an address.
std::string_view word_at(std::string_view text) {
  return text.substr(0, text.find_first_of(" ,;)\n"));
}

std::string without_brackets(std::string_view address) {
  if (address.starts_with('[') && address.ends_with(']'))
    address = address.substr(1, address.size() - 2);
  return std::string(address);
}

// The client that the text begins with; length 0: it begins with something else.
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

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

bool may_come_from(const ctl::StorePeer& host, const std::string& address) {
  if (is_loopback(address)) return host.reaches_by_loopback();
  return std::find(host.addresses().begin(), host.addresses().end(), address) !=
         host.addresses().end();
}

// "0-2,5" of ascending ranks.
std::string folded(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + folded(ranks);
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
        if (worker.pid() > 0) workers_.emplace(worker.pid(), Place{&host, worker.rank()});
  }

  // What a person calls it, in place of `said`.
  std::string name_of(const NamedClient& client, std::string_view said) const {
    std::vector<Place> places;
    const auto [first, last] = workers_.equal_range(client.pid);
    for (auto worker = first; worker != last; ++worker)
      if (may_come_from(*worker->second.host, client.address)) places.push_back(worker->second);
    if (places.size() == 1)
      return "rank " + std::to_string(places.front().rank) + " (host " +
             places.front().host->name() + ", pid " + std::to_string(client.pid) + ")";
    return std::string(said) + host_text(client.address);
  }

 private:
  struct Place {
    const ctl::StorePeer* host;
    std::uint32_t rank;
  };

  // A process that a rank has started, or one that did not say who it is.
  std::string host_text(const std::string& address) const {
    if (store_.hosts_size() < 2) return "";
    const ctl::StorePeer* only = nullptr;
    for (const ctl::StorePeer& host : store_.hosts()) {
      if (!may_come_from(host, address)) continue;
      if (only != nullptr) return "";
      only = &host;
    }
    if (only == nullptr || only->workers_size() == 0) return "";
    return " (host " + only->name() + ", " + ranks_text(ranks_of(*only)) + ")";
  }

  const ctl::StoreDescription& store_;
  std::multimap<std::int32_t, Place> workers_;
};

std::string ended_line(const ctl::StoreDescription& store) {
  std::vector<std::uint32_t> ended;
  for (const ctl::StorePeer& host : store.hosts())
    for (const ctl::StoreWorker& worker : host.workers())
      if (worker.ended()) ended.push_back(worker.rank());
  if (ended.empty()) return "";
  std::sort(ended.begin(), ended.end());
  return "\n" + ranks_text(ended) + (ended.size() == 1 ? " has ended" : " have ended");
}

}  // namespace

std::string explain_ranks(std::string_view explanation, const ctl::StoreDescription& store) {
  const RankNames names(store);
  std::string text;
  for (std::size_t i = 0; i < explanation.size();) {
    // A name stands behind a key or behind another name, never inside of a key in quotes.
    const std::string_view before = explanation.substr(0, i);
    const bool may_begin = before.ends_with(": ") || before.ends_with(", ");
    const NamedClient client = may_begin ? client_at(explanation.substr(i)) : NamedClient{};
    if (client.length == 0) {
      text += explanation[i++];
      continue;
    }
    text += names.name_of(client, explanation.substr(i, client.length));
    i += client.length;
  }
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
