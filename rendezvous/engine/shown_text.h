// SPDX-License-Identifier: Apache-2.0
// Keys in messages for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy::store {

// Returns the key without terminal controls, cut to at most 120 bytes.
std::string shown_key(std::string_view key);
// Returns, for example, "a, b and 3 more": the first `most` of `count` names.
std::string shown_list(const std::vector<std::string>& names, std::size_t count, std::size_t most);

}  // namespace ivy::store
