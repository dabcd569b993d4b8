// SPDX-License-Identifier: Apache-2.0
// Variables that a user sends to workers: -x, and the lines of an --env-file. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Adds the variables of one -x or of one line of an --env-file: "K=V", "K" (the caller's value) or
// "K*" (all of the caller's variables with this prefix). The message of InvalidArgument names the
// variable.
Result<void> add_export(Environment& out, std::string_view text, const Environment& caller);

// Sets or replaces all of these variables.
void set_variables(Environment& environment, const Environment& more);

// Parses the values of all -x, in order.
Result<Environment> parse_exports(const std::vector<std::string>& exports,
                                  const Environment& caller);

}  // namespace ivy
