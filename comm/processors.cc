#include "comm/processors.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace ivy::comm {
namespace {

constexpr std::uint32_t kProcessorsMax = 8192;  // What Linux may be built for.

std::optional<std::uint32_t> number_from(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number < kProcessorsMax ? std::optional(number) : std::nullopt;
}

// An assignment of processors to ranks that grows by augmenting paths (Kuhn's algorithm).
class Assignment {
 public:
  explicit Assignment(const std::vector<Processors>& ranks)
      : ranks_(ranks), holder_(kProcessorsMax, kNobody), tried_(kProcessorsMax, kNobody) {}

  bool place(std::size_t rank) {
    round_ = rank;
    return place_again(rank);
  }

 private:
  bool place_again(std::size_t rank) {
    // First what is free: nobody has to move then.
    for (const std::uint32_t processor : ranks_[rank]) {
      if (holder_[processor] != kNobody) continue;
      holder_[processor] = rank;
      return true;
    }
    for (const std::uint32_t processor : ranks_[rank]) {
      if (std::exchange(tried_[processor], round_) == round_) continue;
      if (!place_again(holder_[processor])) continue;
      holder_[processor] = rank;
      return true;
    }
    return false;
  }

  static constexpr std::size_t kNobody = ~std::size_t{0};
  const std::vector<Processors>& ranks_;
  std::vector<std::size_t> holder_;  // By processor: the rank that has it.
  std::vector<std::size_t> tried_;   // By processor: the round in which it was asked for last.
  std::size_t round_ = kNobody;
};

}  // namespace

Processors own_processors() {
  std::vector<unsigned long> words(kProcessorsMax / (8 * sizeof(unsigned long)));
  const std::size_t bytes = words.size() * sizeof(unsigned long);
  auto* const set = reinterpret_cast<cpu_set_t*>(words.data());
  Processors processors;
  if (sched_getaffinity(0, bytes, set) != 0) return processors;
  for (std::uint32_t processor = 0; processor < kProcessorsMax; ++processor) {
    if (CPU_ISSET_S(processor, bytes, set)) processors.push_back(processor);
  }
  return processors;
}

std::string processors_text(const Processors& processors) {
  std::string text;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    text += (i == 0 ? "" : ",") + std::to_string(processors[i]);
    if (last > i) text += "-" + std::to_string(processors[last]);
    i = last + 1;
  }
  return text;
}

Processors processors_from(const std::string& text) {
  Processors processors;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::size_t dash = part.find('-');
    const std::optional<std::uint32_t> first = number_from(part.substr(0, dash));
    const std::optional<std::uint32_t> last =
        dash == std::string_view::npos ? first : number_from(part.substr(dash + 1));
    if (!first || !last) return {};
    for (std::uint32_t processor = *first; processor <= *last; ++processor) {
      processors.push_back(processor);
    }
  }
  return processors;
}

bool have_processor_each(const std::vector<Processors>& ranks) {
  Assignment assignment(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!assignment.place(rank)) return false;
  }
  return true;
}

bool are_crowded(const std::vector<Processors>& ranks) {
  constexpr std::size_t kRanksEach = 2;
  std::vector<bool> is_used(kProcessorsMax, false);
  for (const Processors& processors : ranks) {
    for (const std::uint32_t processor : processors) is_used[processor] = true;
  }
  const auto used = static_cast<std::size_t>(std::count(is_used.begin(), is_used.end(), true));
  return used > 0 && ranks.size() > kRanksEach * used;
}

}  // namespace ivy::comm
