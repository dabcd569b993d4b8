// SPDX-License-Identifier: Apache-2.0
// --tf-roles: which task of TensorFlow's cluster each rank is. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// "ps:2": so many ranks, in rank order; without a number one chief or evaluator, and all that is
// left of the others.
struct TfRole {
  std::string type;
  std::optional<int> count;
};

struct TfTask {
  std::string type;
  int index = 0;
};

// "chief,ps:2,worker". InvalidArgument: an unknown type, one named twice, or two without a number.
Result<std::vector<TfRole>> parse_tf_roles(std::string_view text);

// One task for each rank. Without roles every rank is a worker; ranks that no role takes are
// workers too.
std::vector<TfTask> tf_tasks(const std::vector<TfRole>& roles, int world_size);

// The ranks that the roles need at least.
int least_ranks(const std::vector<TfRole>& roles);

}  // namespace ivy
