// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/group_context.h"

#include <cstddef>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr char kBehindContext = ' ';

}  // namespace

std::string with_context(std::uint32_t context, std::string_view data) {
  std::string text = std::to_string(context) + kBehindContext;
  text += data;
  return text;
}

Result<GroupResult> group_result(std::string_view all) {
  const std::size_t end = all.find(kBehindContext);
  if (end != std::string_view::npos)
    if (const auto context = to_number<std::uint32_t>(all.substr(0, end)))
      return GroupResult{*context, std::string(all.substr(end + 1))};
  return Error{Code::kInternal, "the first host of a group of ranks has chosen no number for it"};
}

}  // namespace ivy
