// SPDX-License-Identifier: Apache-2.0
// run() chooses the function that performs an operation. Those that move data are in
// spanning_move.cc, those that reduce in spanning_reduce.cc.
#include "comm/collectives/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/contract/status.h"

namespace ivy::comm {

HostMap make_host_map(const std::vector<std::uint32_t>& host_of_rank, std::int32_t self) {
  HostMap map;
  map.self = self;
  // The job's number of each host, in the order of their first ranks.
  std::vector<std::uint32_t> known;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto found = std::find(known.begin(), known.end(), host_of_rank[rank]);
    const auto host = static_cast<std::uint32_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(host_of_rank[rank]);
      map.hosts.emplace_back();
    }
    map.host_of.push_back(host);
    map.member_of.push_back(static_cast<std::uint32_t>(map.hosts[host].size()));
    map.hosts[host].push_back(static_cast<std::int32_t>(rank));
  }
  return map;
}

bool HostCollectives::run(const OperationCall& call, const Collective& collective) {
  switch (collective.shape.operation) {
#define IVY_COLLECTIVE(function, number, enumerator, text, performer, ...) \
  case Operation::enumerator:                                              \
    return performer(call, collective);
#include "proto/wire/operations.def"
    case Operation::kSplit:
      return all_gather(call, collective);
    default:
      IVY_ASSERT(!"a collective");
  }
  return false;
}

// Every step uses the fingerprint of all parts, so that ranks with different parts find the
// mismatch in the first step, whatever their steps are.
bool HostCollectives::all_reduce_parts(const OperationCall& call, const Collective& collective) {
  const std::vector<Part>& parts = collective.parts;
  const ReduceRule how = rule_of(collective);
  const std::size_t element = how.input_bytes();
  const PartSizes sizes =
      map_.rank_count() == 1 ? PartSizes() : part_sizes(spans_hosts(), has_processor_each_);
  std::vector<std::size_t> counts;
  for (const Part& part : parts) counts.push_back(part.count);
  for (const PartStep& step : plan_parts(counts, element, sizes)) {
    if (!step.is_packed) {
      char nothing = 0;
      const Part part = step.count == 0 ? Part{&nothing, &nothing, 0} : parts[step.first];
      if (!all_reduce_vector(call, {how, part.send, part.receive, step.count})) return false;
      continue;
    }
    char* const packed = parts_scratch_.memory(step.count * element);
    const auto each_packed = [&](auto visit) {
      char* next = packed;
      for (std::size_t part = step.first; part < step.end; ++part) {
        if (!is_packed(counts[part], element, sizes)) continue;
        visit(parts[part], next, counts[part] * element);
        next += counts[part] * element;
      }
    };
    each_packed(
        [](const Part& part, char* to, std::size_t bytes) { std::memcpy(to, part.send, bytes); });
    if (!all_reduce_vector(call, {how, packed, packed, step.count})) return false;
    each_packed([](const Part& part, const char* from, std::size_t bytes) {
      std::memcpy(part.receive, from, bytes);
    });
  }
  return true;
}

}  // namespace ivy::comm
