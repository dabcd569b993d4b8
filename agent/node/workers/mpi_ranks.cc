// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/mpi_ranks.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// Used instead of a time after the process was killed.
constexpr std::uint64_t kKilled = ~std::uint64_t{0};

// Removes and returns the first word of the line.
std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

// Truncates the code as the kernel would. A job aborted with code 0 has failed all the same.
int abort_code(int code) { return (code & 0xff) == 0 ? 1 : code & 0xff; }

}  // namespace

bool MpiRanks::take(std::string_view line, std::uint64_t now_ns) {
  const std::string_view event = take_word(line);
  const std::optional<std::uint32_t> number = to_number<std::uint32_t>(take_word(line));
  const std::optional<int> code =
      event == "abort" ? to_number<int>(take_word(line)) : std::optional(1);
  if (!number || !code) return false;
  if (event != "joined" && event != "left" && event != "abort" && event != "vanished") return false;
  Rank& rank = ranks_[*number];
  if (event == "joined" && rank.state == State::kAbsent) new_.push_back(*number);
  if (event == "joined") rank.state = State::kJoined;
  if (event == "left") rank.state = State::kLeft;
  if (event == "abort") {
    rank.state = State::kAborted;
    rank.code = *code;
    // Open MPI 4.1 always sends this text.
    if (line != "N/A") rank.text = line;
    rank.kill_at_ns = now_ns + kAbortNs;
  }
  if (event == "vanished" && rank.state == State::kJoined) {
    rank.state = State::kVanished;
    rank.kill_at_ns = now_ns + kVanishedNs;
  }
  return true;
}

std::vector<std::uint32_t> MpiRanks::take_new() { return std::exchange(new_, {}); }

bool MpiRanks::has_joined() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return entry.second.state != State::kAbsent; });
}

MpiEnd MpiRanks::classify(std::uint32_t number, const ExitStatus& status) const {
  const auto found = ranks_.find(number);
  const Rank rank = found == ranks_.end() ? Rank{} : found->second;
  switch (rank.state) {
    case State::kAborted:
      return MpiEnd{abort_code(rank.code), "by MPI_Abort(" + std::to_string(rank.code) + ")" +
                                               (rank.text.empty() ? "" : ": " + rank.text)};
    case State::kJoined:
    case State::kVanished:
      if (status.is_success())
        return MpiEnd{1, "with exit 0 before MPI_Finalize: the other ranks wait for it there"};
      if (status.signal == SIGKILL && rank.kill_at_ns == kKilled)
        return MpiEnd{
            1, "with SIGKILL: its MPI process had exited before MPI_Finalize, so ivyrun killed it"};
      return {};
    case State::kAbsent:
      if (status.is_success()) return classify_absent();
      return {};
    case State::kLeft:
      return {};
  }
  return {};
}

MpiEnd MpiRanks::classify_absent() const {
  if (has_joined())
    return MpiEnd{1, "with exit 0 before MPI_Init: the other ranks wait for it there"};
  if (!required_) return MpiEnd{.is_absent = true};
  return MpiEnd{1,
                "with exit 0 before MPI_Init: under -B mpi every rank joins the MPI world; leave "
                "-B mpi out for a program without MPI"};
}

std::vector<std::uint32_t> MpiRanks::overdue(std::uint64_t now_ns) {
  std::vector<std::uint32_t> numbers;
  for (auto& [number, rank] : ranks_) {
    if (!rank.kill_at_ns || *rank.kill_at_ns > now_ns) continue;
    numbers.push_back(number);
    rank.kill_at_ns = kKilled;
  }
  return numbers;
}

}  // namespace ivy
