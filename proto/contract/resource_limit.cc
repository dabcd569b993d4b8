// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/resource_limit.h"

#include <sys/resource.h>

namespace ivy {
namespace {

constexpr ResourceName kResources[] = {
    {"as", RLIMIT_AS, "B", false},       {"core", RLIMIT_CORE, "B", true},
    {"cpu", RLIMIT_CPU, "s", false},     {"data", RLIMIT_DATA, "B", false},
    {"fsize", RLIMIT_FSIZE, "B", true},  {"memlock", RLIMIT_MEMLOCK, "B", false},
    {"nofile", RLIMIT_NOFILE, "", true}, {"nproc", RLIMIT_NPROC, "", false},
    {"rss", RLIMIT_RSS, "B", false},     {"stack", RLIMIT_STACK, "B", true},
};

}  // namespace

std::span<const ResourceName> resource_names() { return kResources; }

const ResourceName* find_resource(std::string_view name) {
  for (const ResourceName& resource : kResources)
    if (resource.name == name) return &resource;
  return nullptr;
}

const ResourceName* find_resource(int number) {
  for (const ResourceName& resource : kResources)
    if (resource.number == number) return &resource;
  return nullptr;
}

std::string limit_text(const ResourceName& resource, std::uint64_t limit) {
  if (limit == kUnlimited) return "unlimited";
  if (resource.unit == "s") return std::to_string(limit) + " s";
  if (resource.unit.empty() || limit == 0) return std::to_string(limit);
  constexpr std::uint64_t kMebi = 1u << 20;
  constexpr std::uint64_t kKibi = 1u << 10;
  if (limit % kMebi == 0) return std::to_string(limit / kMebi) + " MiB";
  if (limit % kKibi == 0) return std::to_string(limit / kKibi) + " KiB";
  return std::to_string(limit) + " bytes";
}

}  // namespace ivy
