// SPDX-License-Identifier: Apache-2.0
// Every operation as one call without checks, for tests of how calls end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "comm/contract/ivycomm.h"

namespace ivy::comm::test {

struct NamedOperation {
  const char* name;
  // Each buffer has `count` f32 for each rank.
  int (*call)(ivy_comm* comm, float* send, float* receive, std::size_t count, const ivy_call* how);
  bool is_variant = false;  // Of another operation here: uneven, or in several parts.
};

// Every second rank has half as many elements; for pairs, those whose sum is odd.
inline std::vector<std::size_t> uneven_counts(ivy_comm* comm, std::size_t count, int first = 0) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ivy_comm_size(comm); ++rank) {
    counts.push_back((first + rank) % 2 == 0 ? count : count / 2);
  }
  return counts;
}

inline std::size_t own_count(ivy_comm* comm, std::size_t count) {
  return uneven_counts(comm, count)[static_cast<std::size_t>(ivy_comm_rank(comm))];
}

// Returns the functions of operations.def, without "ivy_", that are not in `listed`. Tests compare
// lists of operations with it, so that no list lacks a new operation.
inline std::set<std::string> functions_missing_in(const std::set<std::string>& listed) {
  std::set<std::string> missing = {
#define IVY_FUNCTION(function, ...) #function,
#include "proto/wire/operations.def"
  };
  for (const std::string& name : listed) missing.erase(name);
  return missing;
}

inline std::vector<NamedOperation> plain_operations() {
  using F = float*;
  using C = const ivy_call*;
  using N = std::size_t;
  return {
      {"all_reduce",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_all_reduce(comm, send, receive, count, IVY_F32, IVY_SUM, how);
       }},
      {"reduce",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_reduce(comm, send, receive, count, IVY_F32, IVY_SUM, 0, how);
       }},
      {"broadcast", [](ivy_comm* comm, F send, F, N count,
                       C how) { return ivy_broadcast(comm, send, count, IVY_F32, 0, how); }},
      {"all_gather",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_all_gather(comm, send, receive, count, IVY_F32, how);
       }},
      {"reduce_scatter",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_reduce_scatter(comm, send, receive, count, IVY_F32, IVY_SUM, how);
       }},
      {"gather", [](ivy_comm* comm, F send, F receive, N count,
                    C how) { return ivy_gather(comm, send, receive, count, IVY_F32, 0, how); }},
      {"scatter", [](ivy_comm* comm, F send, F receive, N count,
                     C how) { return ivy_scatter(comm, send, receive, count, IVY_F32, 0, how); }},
      {"all_to_all",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_all_to_all(comm, send, receive, count, IVY_F32, how);
       }},
      {"scan", [](ivy_comm* comm, F send, F receive, N count,
                  C how) { return ivy_scan(comm, send, receive, count, IVY_F32, IVY_SUM, how); }},
      {"exscan",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_exscan(comm, send, receive, count, IVY_F32, IVY_SUM, how);
       }},
      {"barrier", [](ivy_comm* comm, F, F, N, C how) { return ivy_barrier(comm, how); }},
      {"sendrecv",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         const int size = ivy_comm_size(comm);
         const int rank = ivy_comm_rank(comm);
         return ivy_sendrecv(comm, send, count, (rank + 1) % size, 0, receive, count,
                             (rank + size - 1) % size, 0, IVY_F32, nullptr, how);
       }},
      {"split",
       [](ivy_comm* comm, F, F, N, C) {
         ivy_comm* group = nullptr;
         const int code = ivy_comm_split(comm, 0, 0, &group);
         return code != IVY_OK ? code : ivy_comm_free(group);
       }},
      {"group",
       [](ivy_comm* comm, F, F, N, C) {
         std::vector<std::int32_t> ranks(static_cast<std::size_t>(ivy_comm_size(comm)));
         std::iota(ranks.rbegin(), ranks.rend(), 0);
         ivy_comm* group = nullptr;
         const int code =
             ivy_comm_group(comm, ranks.data(), static_cast<std::int32_t>(ranks.size()), &group);
         return code != IVY_OK ? code : ivy_comm_free(group);
       }},
  };
}

inline std::vector<NamedOperation> variant_operations() {
  using F = float*;
  using C = const ivy_call*;
  using N = std::size_t;
  return {
      {"all_gather_v",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_all_gather_v(comm, send, receive, uneven_counts(comm, count).data(), nullptr,
                                 IVY_F32, how);
       },
       true},
      {"reduce_scatter_v",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_reduce_scatter_v(comm, send, receive, uneven_counts(comm, count).data(),
                                     IVY_F32, IVY_SUM, how);
       },
       true},
      {"gather_v",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_gather_v(comm, send, own_count(comm, count), receive,
                             uneven_counts(comm, count).data(), nullptr, IVY_F32, 0, how);
       },
       true},
      {"scatter_v",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         return ivy_scatter_v(comm, send, uneven_counts(comm, count).data(), nullptr, receive,
                              own_count(comm, count), IVY_F32, 0, how);
       },
       true},
      {"all_to_all_v",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         const std::vector<N> counts = uneven_counts(comm, count, ivy_comm_rank(comm));
         return ivy_all_to_all_v(comm, send, counts.data(), nullptr, receive, counts.data(),
                                 nullptr, IVY_F32, how);
       },
       true},
      {"all_reduce_coalesced",
       [](ivy_comm* comm, F send, F receive, N count, C how) {
         const N counts[] = {count - count / 2, count / 2};
         const void* const from[] = {send, send + counts[0]};
         void* const to[] = {receive, receive + counts[0]};
         return ivy_all_reduce_coalesced(comm, 2, from, to, counts, IVY_F32, IVY_SUM, how);
       },
       true},
  };
}

inline const std::vector<NamedOperation>& operations() {
  static const std::vector<NamedOperation> all = [] {
    std::vector<NamedOperation> both = plain_operations();
    for (const NamedOperation& variant : variant_operations()) both.push_back(variant);
    return both;
  }();
  return all;
}

}  // namespace ivy::comm::test
