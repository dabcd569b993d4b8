// SPDX-License-Identifier: Apache-2.0
// A regular expression that a user has given in a flag. RE2 matches in time linear in the text, so
// no pattern can make ivyrun slow, and it bounds the memory of the compiled pattern. This is the
// only header that knows RE2. Copies share the compiled pattern. Thread: any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace re2 {
class RE2;
}

namespace ivy {

class Pattern {
 public:
  // Compiles an expression in RE2's syntax, which is Perl's without back-references and
  // look-around. Texts are bytes: they need not be UTF-8. InvalidArgument: it is not a regular
  // expression.
  static Result<Pattern> compile(const std::string& expression);

  // Returns true if the pattern matches somewhere in the text.
  bool matches(std::string_view text) const;
  // Returns the number that the first group matches ("step (\d+)"); none if the text does not match
  // or the group is not a number. Needs a pattern with a group.
  std::optional<double> number_in(std::string_view text) const;
  // Returns the number of groups.
  int groups() const;
  const std::string& text() const;

 private:
  explicit Pattern(std::shared_ptr<const re2::RE2> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const re2::RE2> compiled_;
};

}  // namespace ivy
