// SPDX-License-Identifier: Apache-2.0
// --tf-roles: assigns the tasks of a TensorFlow cluster to ranks. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// "ps:2": the number of ranks of a type, in rank order. Without a number: one chief or evaluator,
// or all remaining ranks for another type.
struct TfRole {
  std::string type;
  std::optional<int> count;
};

struct TfTask {
  std::string type;
  int index = 0;
};

// Parses "chief,ps:2,worker". Returns InvalidArgument for an unknown type, a repeated type, or two
// types without a number.
Result<std::vector<TfRole>> parse_tf_roles(std::string_view text);

// Returns one task for each rank. Ranks that no role takes are workers, as is every rank without
// roles.
std::vector<TfTask> tf_tasks(const std::vector<TfRole>& roles, int world_size);

// Returns the minimum number of ranks for these roles.
int min_ranks(const std::vector<TfRole>& roles);

}  // namespace ivy
