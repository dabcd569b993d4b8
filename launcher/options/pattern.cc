// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/pattern.h"

#include <re2/re2.h>

#include <cmath>
#include <cstdlib>
#include <utility>

namespace ivy {
namespace {

// Limit of a compiled pattern, in bytes. A pattern that a person types needs a few kilobytes.
constexpr std::int64_t kMaxCompiledBytes = 1 << 20;

}  // namespace

Result<Pattern> Pattern::compile(const std::string& expression) {
  re2::RE2::Options options;
  options.set_encoding(re2::RE2::Options::EncodingLatin1);
  options.set_log_errors(false);
  options.set_max_mem(kMaxCompiledBytes);
  auto compiled = std::make_shared<const re2::RE2>(expression, options);
  if (compiled->ok()) return Pattern(std::move(compiled));
  return Error{Code::kInvalidArgument,
               "\"" + expression + "\" is not a regular expression: " + compiled->error(),
               "see https://github.com/google/re2/wiki/Syntax; quote the pattern for the shell"};
}

bool Pattern::matches(std::string_view text) const {
  return re2::RE2::PartialMatch({text.data(), text.size()}, *compiled_);
}

std::optional<double> Pattern::number_in(std::string_view text) const {
  std::string digits;
  if (!re2::RE2::PartialMatch({text.data(), text.size()}, *compiled_, &digits)) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end == digits.c_str() || !std::isfinite(number)) return std::nullopt;
  return number;
}

int Pattern::groups() const { return compiled_->NumberOfCapturingGroups(); }

const std::string& Pattern::text() const { return compiled_->pattern(); }

}  // namespace ivy
