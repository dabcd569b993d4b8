#include "launcher/options/early_look.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ivy {
namespace {

constexpr std::array<std::string_view, 5> kCounts = {"-n", "-np", "--np", "--nproc_per_node",
                                                     "--nproc-per-node"};
// Defaults of flags, and the schedulers' allocations.
constexpr std::array<std::string_view, 6> kPrefixes = {"IVY_", "PET_", "SLURM_",
                                                       "PBS_", "LSB_", "PE_"};

bool is_count(std::string_view word) { return std::ranges::find(kCounts, word) != kCounts.end(); }

}  // namespace

bool is_probably_local(const std::vector<std::string>& arguments, const Environment& caller) {
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].starts_with('-')) {
    const std::size_t equal = arguments[at].find('=');
    if (!is_count(std::string_view(arguments[at]).substr(0, equal))) return false;
    at += equal == std::string::npos ? 2 : 1;
  }
  const bool has_program = at > 0 && at < arguments.size();
  return has_program && std::ranges::none_of(caller, [](const EnvVariable& variable) {
           return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) {
             return variable.name.starts_with(prefix);
           });
         });
}

}  // namespace ivy
