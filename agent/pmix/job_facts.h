// SPDX-License-Identifier: Apache-2.0
// A job's data in PMIx: keys and values of its namespace and of each rank, limited to the ones that
// Open MPI 4.1 and 5 and an MPICH with PMIx need. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "agent/pmix/job_layout.h"

namespace ivy {

struct RankNumber {
  std::uint32_t value = 0;
  bool operator==(const RankNumber&) const = default;
};
// Lists that libpmix has to encode.
struct NodeMap {
  std::string list;
  bool operator==(const NodeMap&) const = default;
};
struct RankMap {
  std::string lists;
  bool operator==(const RankMap&) const = default;
};

using FactValue =
    std::variant<bool, std::uint16_t, std::uint32_t, RankNumber, NodeMap, RankMap, std::string>;

struct Fact {
  const char* key;  // One of the names in pmix_common.h.
  FactValue value;
};

struct JobFacts {
  std::vector<Fact> job;
  std::vector<std::vector<Fact>> ranks;
};

struct FactSource {
  const JobLayout& layout;
  std::uint32_t host = 0;
  std::string job;  // The job's name as Open MPI shows it.
  // Private to the ranks of this host: Open MPI may remove it whole.
  std::string session_directory;
  std::uint32_t generation = 0;
  bool is_oversubscribed = false;  // More ranks than processors: waiting ranks should yield.
};

JobFacts job_facts(const FactSource& source);

}  // namespace ivy
