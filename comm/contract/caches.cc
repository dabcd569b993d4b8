// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/caches.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include "comm/contract/processors.h"

namespace ivy::comm {
namespace {

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// Parses a size such as "32768K" or "96M". Returns 0 if `text` is not a size.
std::uint64_t size_from(const std::string& text) {
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc()) return 0;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit == "K") return size << 10;
  if (unit == "M") return size << 20;
  return unit.empty() ? size : 0;
}

bool is_near_processor() {
#if defined(__x86_64__)
  unsigned most = 0;
  unsigned maker[3] = {};
  if (__get_cpuid(0, &most, &maker[0], &maker[2], &maker[1]) == 0) return false;
  return std::memcmp(maker, "AuthenticAMD", sizeof maker) == 0;
#else
  return false;
#endif
}

}  // namespace

Caches own_caches(const std::string& root) {
  Caches caches;
  const CoreList processors = own_processors();
  const int processor = processors.empty() ? 0 : processors.front();
  const std::string all =
      root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/cache/index";
  std::uint64_t last_level = 1;  // A first level is never shared.
  constexpr int kIndexesMax = 16;
  for (int index = 0; index < kIndexesMax; ++index) {
    const std::string one = all + std::to_string(index) + "/";
    const std::uint64_t level = size_from(first_word(one + "level"));
    if (level == 0) break;
    if (level <= last_level || first_word(one + "type") == "Instruction") continue;
    last_level = level;
    caches.last_bytes = size_from(first_word(one + "size"));
    const auto sharers = parse_core_list(first_word(one + "shared_cpu_list")).size();
    caches.last_processors = static_cast<std::uint32_t>(sharers);
  }
  if (caches.last_processors == 0 || caches.last_bytes == 0) return {};
  caches.is_near = is_near_processor();
  return caches;
}

std::string caches_text(const Caches& caches) {
  return std::to_string(caches.last_bytes) + "," + std::to_string(caches.last_processors) +
         (caches.is_near ? ",near" : ",far");
}

Caches caches_from(const std::string& text) {
  Caches caches;
  const char* const end = text.data() + text.size();
  const auto bytes = std::from_chars(text.data(), end, caches.last_bytes);
  if (bytes.ec != std::errc() || bytes.ptr == end || *bytes.ptr != ',') return {};
  const auto sharers = std::from_chars(bytes.ptr + 1, end, caches.last_processors);
  const std::string_view rest(sharers.ptr, static_cast<std::size_t>(end - sharers.ptr));
  if (sharers.ec != std::errc() || (rest != ",near" && rest != ",far")) return {};
  caches.is_near = rest == ",near";
  return caches;
}

Caches smallest_caches(const std::vector<Caches>& ranks) {
  if (ranks.empty()) return {};
  Caches least = ranks.front();
  for (const Caches& rank : ranks) {
    least.last_bytes = std::min(least.last_bytes, rank.last_bytes);
    least.last_processors = std::min(least.last_processors, rank.last_processors);
    least.is_near = least.is_near && rank.is_near;
  }
  return least.last_bytes == 0 || least.last_processors == 0 ? Caches() : least;
}

std::uint64_t last_level_bytes(const Caches& caches, std::uint32_t ranks) {
  if (caches.last_processors == 0) return 0;
  const std::uint64_t busy = caches.processors == 0 ? ranks : std::min(ranks, caches.processors);
  const std::uint64_t levels = (busy + caches.last_processors - 1) / caches.last_processors;
  return levels * caches.last_bytes;
}

}  // namespace ivy::comm
