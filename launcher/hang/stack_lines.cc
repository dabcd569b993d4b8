// SPDX-License-Identifier: Apache-2.0
// stack_lines() joins ranks whose text is equal (groups_of(), describe()) and prints each text
// once. collective_line() derives from the stacks which ranks are in a collective. has_moved()
// compares two samples.
#include "launcher/hang/stack_lines.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "launcher/hang/stack_text.h"
#include "launcher/report/folded_ranks.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxTextBytes = 480u << 10;
// Our own queries use a few ticks of a process that otherwise sleeps all the time.
constexpr std::uint64_t kIdleTicks = 5;

struct StackGroup {
  std::string description;
  RankGroup members;
};

std::string state_text(const RankEvidence& rank) {
  if (rank.state().empty()) return "";
  switch (rank.state().front()) {
    case 'T':
      return "stopped by a signal";
    case 't':
      return "held by a debugger";
    case 'D':
      return "uninterruptible" + (rank.waiting_in().empty() ? "" : " in " + rank.waiting_in());
    case 'Z':
      return "ended";
    case 'R':
      return "running";
    default:
      return rank.waiting_in().empty() ? "sleeping" : "sleeping in " + rank.waiting_in();
  }
}

// Returns false for R and S, since the stack shows more and these states change between samples.
bool state_matters(const RankEvidence& rank) {
  return !rank.state().empty() &&
         std::string_view("TtDZ").find(rank.state().front()) != std::string_view::npos;
}

std::string thread_block(const StackThread& thread, std::size_t count) {
  std::string text = count == 1 ? thread.name : std::to_string(count) + " threads";
  if (count > 1 && thread.name.starts_with("thread ")) text += " " + thread.name.substr(7);
  text += ": " + thread.frames.front();
  for (std::size_t i = 1; i < thread.frames.size(); ++i) text += "\n    " + thread.frames[i];
  return text;
}

// Returns the number and the arguments of "230 0x0 0x1 ...". Leaves out addresses, such as the
// stack pointer and the program counter at the end, because they differ between ranks whose state
// is otherwise equal.
std::string system_call_text(const std::string& line) {
  constexpr std::size_t kWords = 7;
  constexpr std::size_t kAddressLength = 10;  // A word as long as "0x7f123456" is an address.
  std::istringstream words(line);
  std::string text;
  std::string word;
  for (std::size_t i = 0; i < kWords && words >> word; ++i)
    text += (i == 0 ? "" : " ") + (word.size() < kAddressLength ? word : "*");
  return text;
}

std::string kernel_text(const RankEvidence& rank) {
  std::string text;
  if (!rank.threads_in().empty())
    text += "\n  " + std::to_string(rank.threads()) + " threads: " + rank.threads_in();
  if (!rank.system_call().empty())
    text += "\n  system call " + system_call_text(rank.system_call());
  std::string stack = rank.kernel_stack();
  while (!stack.empty() && stack.back() == '\n') stack.pop_back();
  for (std::size_t at = stack.find('\n'); at != std::string::npos; at = stack.find('\n', at + 5))
    stack.replace(at, 1, "\n    ");
  if (!stack.empty()) text += "\n  kernel: " + stack;
  return text;
}

std::string without_stack(const RankEvidence& rank, StackDetail detail) {
  if (rank.state().empty()) return rank.note().empty() ? "it has exited" : rank.note();
  std::string text = rank.name() + ", " + state_text(rank);
  if (!rank.note().empty()) text += ": no stack: " + rank.note();
  return detail == StackDetail::kBrief ? text : text + kernel_text(rank);
}

std::string brief_text(const std::vector<StackThread>& threads) {
  const StackThread& main = threads.front();
  const std::string collective = collective_of(main);
  return collective.empty() ? "in " + main.frames.front() : "in " + collective;
}

std::string describe(const RankEvidence& rank, StackDetail detail) {
  const std::vector<StackThread> threads = parse_stack(rank.tool(), rank.stack());
  if (threads.empty()) return without_stack(rank, detail);
  std::string text = state_matters(rank) ? state_text(rank) + ": " : "";
  if (detail == StackDetail::kBrief) return text + brief_text(threads);
  std::vector<std::pair<StackThread, std::size_t>> folded;
  for (const StackThread& thread : threads) {
    const auto same = std::find_if(folded.begin(), folded.end(),
                                   [&](const auto& other) { return other.first == thread; });
    if (same != folded.end()) {
      ++same->second;
    } else {
      folded.emplace_back(thread, 1);
    }
  }
  for (std::size_t i = 0; i < folded.size(); ++i) {
    if (i == 1 && detail == StackDetail::kMain) break;
    text += (i == 0 ? "" : "\n  ") + thread_block(folded[i].first, folded[i].second);
  }
  if (rank.stack_cut()) text += "\n  (cut off)";
  if (detail == StackDetail::kWhole && !rank.note().empty()) text += "\n  (" + rank.note() + ")";
  return text;
}

// Sorts the hosts, which answer in any order.
std::vector<const HostStacks*> in_rank_order(const std::vector<HostStacks>& hosts) {
  std::vector<const HostStacks*> ordered;
  for (const HostStacks& host : hosts)
    if (host.evidence.ranks_size() > 0) ordered.push_back(&host);
  std::sort(ordered.begin(), ordered.end(), [](const HostStacks* a, const HostStacks* b) {
    return a->evidence.ranks(0).rank() < b->evidence.ranks(0).rank();
  });
  return ordered;
}

std::vector<StackGroup> groups_of(const std::vector<HostStacks>& hosts, StackDetail detail) {
  std::vector<StackGroup> groups;
  std::map<std::string, std::size_t> known;
  for (const HostStacks* host : in_rank_order(hosts))
    for (const RankEvidence& rank : host->evidence.ranks()) {
      std::string text = describe(rank, detail);
      const auto [found, is_new] = known.emplace(text, groups.size());
      if (is_new) groups.push_back({std::move(text), {{}, {}, rank.pid()}});
      groups[found->second].members.add(rank.rank(), host->host);
    }
  for (StackGroup& group : groups)
    std::sort(group.members.ranks.begin(), group.members.ranks.end());
  std::stable_sort(groups.begin(), groups.end(), [](const StackGroup& a, const StackGroup& b) {
    return a.members.ranks.front() < b.members.ranks.front();
  });
  return groups;
}

}  // namespace

std::string stack_lines(const std::vector<HostStacks>& hosts,
                        const std::vector<std::string>& silent, StackDetail detail) {
  std::string text;
  std::vector<std::uint32_t> left_out;
  for (const StackGroup& group : groups_of(hosts, detail)) {
    const std::string line = group.members.text() + "): " + group.description;
    if (text.size() + line.size() > kMaxTextBytes) {
      left_out.insert(left_out.end(), group.members.ranks.begin(), group.members.ranks.end());
      continue;
    }
    text += (text.empty() ? "" : "\n") + line;
  }
  if (!left_out.empty())
    text += "\nranks " + folded_ranks(left_out) +
            ": omitted, the report is too long (--ranks LIST selects ranks)";
  for (const std::string& host : silent)
    text += (text.empty() ? "" : "\n") + ("host " + host + " did not answer in time");
  return text;
}

std::string collective_line(const std::vector<HostStacks>& hosts) {
  std::map<std::string, std::vector<std::uint32_t>> inside;
  std::vector<std::uint32_t> outside;
  for (const HostStacks& host : hosts)
    for (const RankEvidence& rank : host.evidence.ranks()) {
      const std::vector<StackThread> threads = parse_stack(rank.tool(), rank.stack());
      const std::string collective = threads.empty() ? "" : collective_of(threads.front());
      (collective.empty() ? outside : inside[collective]).push_back(rank.rank());
    }
  if (inside.empty() || (inside.size() == 1 && outside.empty())) return "";
  std::string text;
  const auto add = [&text](const std::vector<std::uint32_t>& ranks, const std::string& what) {
    text += (text.empty() ? "" : "; ") + named_ranks(ranks) +
            (ranks.size() == 1 ? " is in " : " are in ") + what;
  };
  for (const auto& [collective, ranks] : inside) add(ranks, collective);
  if (!outside.empty()) add(outside, "no collective");
  return text;
}

bool has_moved(const std::vector<HostStacks>& before, const std::vector<HostStacks>& now) {
  std::map<std::uint32_t, const RankEvidence*> old;
  for (const HostStacks& host : before)
    for (const RankEvidence& rank : host.evidence.ranks()) old[rank.rank()] = &rank;
  for (const HostStacks& host : now)
    for (const RankEvidence& rank : host.evidence.ranks()) {
      const auto found = old.find(rank.rank());
      if (found == old.end() || found->second->state().empty() != rank.state().empty()) return true;
      const auto main_of = [](const RankEvidence& one) {
        std::vector<StackThread> threads = parse_stack(one.tool(), one.stack());
        return threads.empty() ? StackThread{} : std::move(threads.front());
      };
      const StackThread stack = main_of(rank);
      if (!stack.frames.empty()) {
        if (stack != main_of(*found->second)) return true;
      } else if (rank.cpu_ticks() > found->second->cpu_ticks() + kIdleTicks) {
        return true;
      }
    }
  return false;
}

}  // namespace ivy
