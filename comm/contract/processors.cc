// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kProcessorsMax = kMaxProcessorNumber + 1;

// Assigns processors to ranks by augmenting paths (Kuhn's algorithm).
class Assignment {
 public:
  explicit Assignment(const std::vector<CoreList>& ranks)
      : ranks_(ranks), holder_(kProcessorsMax, kNone), tried_(kProcessorsMax, kNone) {}

  bool place(std::size_t rank) {
    round_ = rank;
    return assign_again(rank);
  }

 private:
  bool assign_again(std::size_t rank) {
    // Try free processors first, so that no other rank has to move.
    for (const int number : ranks_[rank]) {
      const auto processor = static_cast<std::size_t>(number);
      if (holder_[processor] != kNone) continue;
      holder_[processor] = rank;
      return true;
    }
    for (const int number : ranks_[rank]) {
      const auto processor = static_cast<std::size_t>(number);
      if (std::exchange(tried_[processor], round_) == round_) continue;
      if (!assign_again(holder_[processor])) continue;
      holder_[processor] = rank;
      return true;
    }
    return false;
  }

  static constexpr std::size_t kNone = ~std::size_t{0};
  const std::vector<CoreList>& ranks_;
  std::vector<std::size_t> holder_;  // The rank that holds each processor.
  std::vector<std::size_t> tried_;   // The last round in which each processor was tried.
  std::size_t round_ = kNone;
};

// Returns whether a group has more than `ranks_each` ranks for each processor of its quota.
bool has_more_than(const std::vector<Quotas>& ranks, double ranks_each) {
  std::map<std::string, std::pair<std::size_t, double>> groups;  // Number of ranks, and quota.
  for (const Quotas& quotas : ranks) {
    for (const Quota& quota : quotas) {
      auto& [count, processors] = groups[quota.group];
      processors = quota.processors;
      ++count;
    }
  }
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    const auto& [count, processors] = group.second;
    return static_cast<double>(count) > ranks_each * processors;
  });
}

constexpr std::size_t kMaxRanksPerProcessor = 2;
constexpr int kQuotaSteps = 1000;  // Quotas are encoded with three decimal places.

}  // namespace

CoreList own_processors() {
  std::vector<unsigned long> words(kProcessorsMax / (8 * sizeof(unsigned long)));
  const std::size_t bytes = words.size() * sizeof(unsigned long);
  auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
  CoreList processors;
  if (sched_getaffinity(0, bytes, set) != 0) return processors;
  for (int processor = 0; processor <= kMaxProcessorNumber; ++processor) {
    if (CPU_ISSET_S(static_cast<std::size_t>(processor), bytes, set)) {
      processors.push_back(processor);
    }
  }
  return processors;
}

bool have_processor_each(const std::vector<CoreList>& ranks) {
  Assignment assignment(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!assignment.place(rank)) return false;
  }
  return true;
}

std::size_t count_processors(const std::vector<CoreList>& ranks) {
  CoreList used;
  for (const CoreList& processors : ranks) used = joined_cores(used, processors);
  return used.size();
}

bool are_overloaded(const std::vector<CoreList>& ranks) {
  const std::size_t used = count_processors(ranks);
  return used > 0 && ranks.size() > kMaxRanksPerProcessor * used;
}

// Converts without printf() and strtod(): they use the decimal separator of the program's locale.
std::string quotas_text(const Quotas& quotas) {
  std::string text;
  for (const Quota& quota : quotas) {
    const long long thousandths = std::llround(quota.processors * kQuotaSteps);
    const std::string fraction = std::to_string(kQuotaSteps + thousandths % kQuotaSteps).substr(1);
    text += (text.empty() ? "" : ",") + quota.group + "=" +
            std::to_string(thousandths / kQuotaSteps) + "." + fraction;
  }
  return text;
}

Quotas quotas_from(const std::string& text) {
  Quotas quotas;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view number = take_part(rest, ',');
    const std::string_view group = take_part(number, '=');
    const auto whole = to_number<std::uint32_t>(take_part(number, '.'));
    const auto thousandths = to_number<std::uint32_t>(number);
    if (group.empty() || number.size() != 3 || !whole || !thousandths) return {};
    const double processors = *whole + static_cast<double>(*thousandths) / kQuotaSteps;
    if (processors == 0) return {};
    quotas.push_back({std::string(group), processors});
  }
  return quotas;
}

bool have_quota_each(const std::vector<Quotas>& ranks) { return !has_more_than(ranks, 1); }

bool are_overloaded(const std::vector<Quotas>& ranks) {
  return has_more_than(ranks, kMaxRanksPerProcessor);
}

}  // namespace ivy::comm
